"""Whether somebody listens at an address."""

from __future__ import annotations

import socket

_SECONDS_A_LOOK = 1.0


def listens(address: str) -> bool:
    """Whether a connection to `host:port` is taken; an address that is none takes none."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_A_LOOK):
            return True
    except (OSError, ValueError, OverflowError):
        return False
