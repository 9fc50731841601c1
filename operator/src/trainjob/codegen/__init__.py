"""Generators of files from the typed model and the table of permissions; not imported at run time."""
