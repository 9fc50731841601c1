"""Whether somebody listens at an address."""

from __future__ import annotations

import socket

_SECONDS_A_LOOK = 1.0


def listens(address: str) -> bool:
    """Whether a connection to `host:port` is taken; an address that is none takes none."""
    try:
        _connect(address, _SECONDS_A_LOOK)
    except (OSError, ValueError, OverflowError):
        return False
    return True


def is_gone(address: str | None) -> bool:
    """Whether nobody listens at `host:port` any more; a host that doesn't answer may still be there."""
    try:
        _connect(address or "", _SECONDS_A_LOOK / 2)
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return False


def _connect(address: str, seconds: float) -> None:
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
