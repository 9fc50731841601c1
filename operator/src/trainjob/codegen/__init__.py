"""Generators of files from the typed model; never imported at run time."""
