"""Checkpoints: whole or absent, written by one replica, read by all."""
