"""Generators of files from the typed model and the table of permissions; never imported at run time."""
