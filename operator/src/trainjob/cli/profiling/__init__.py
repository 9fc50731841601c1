"""Requests for profiles of running replicas."""
