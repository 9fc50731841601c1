"""What people do with jobs, for the command line and the Python client: find, follow, wait, run here."""
