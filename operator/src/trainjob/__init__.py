"""Distributed TensorFlow on Kubernetes, that survives."""
