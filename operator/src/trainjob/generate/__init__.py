"""Writes what is generated from the typed model and the table of permissions, or says what would change."""
