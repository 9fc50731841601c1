"""Lines for the log of a replica."""

from __future__ import annotations

import sys


def announce(message: str) -> None:
    """One line for the log, at once."""
    print(f"trainjob: {message}", file=sys.stderr, flush=True)
