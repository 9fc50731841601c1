"""Shared parts of the commands for a cluster: connection, error messages, watching, logs.

Only `server` and `connection` import the Kubernetes client. A command imports them for its first request:
help, and messages about mistakes in files, don't wait for that.
"""
