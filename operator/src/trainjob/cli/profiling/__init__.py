"""Asking a running replica for a profile, wherever it runs."""
