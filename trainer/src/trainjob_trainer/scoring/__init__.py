"""Checkpoints are evaluated, and what they scored is written down."""
