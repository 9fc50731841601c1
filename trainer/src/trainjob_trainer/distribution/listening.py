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


def is_gone(address: str | None) -> bool:
    """Whether nobody listens at `host:port` any more; a host that doesn't answer may still be there."""
    host, _, port = (address or "").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_A_LOOK / 2):
            return False
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
