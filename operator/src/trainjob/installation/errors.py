"""What can go wrong."""


class InstallationFailed(Exception):
    """What went wrong, in a sentence."""
