"""Whether somebody listens at an address, and who waits for it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from trainjob_trainer.task import Task

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


# Coming second: the first worker's server is there before the others ask for it.
#
# TensorFlow tries a port where nobody listens yet again only after a second. All workers start at the same
# moment, so every other restart would take that second longer.


PATIENCE_SECONDS = 10.0
"""Then TensorFlow does the waiting, and says for whom."""
_SECONDS_BETWEEN_LOOKS = 0.01


def wait_for_first_worker(
    task: Task,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Return once the worker that coordinates the others listens, or after `PATIENCE_SECONDS`.

    Args:
        task: this replica; the first worker itself, and one that is alone, wait for nobody.
        clock: seconds, replaced by tests.
        sleep: replaced by tests.

    Returns:
        Whether it listens; true for those who wait for nobody.
    """
    address = task.writer_address
    if not task.is_distributed or task.num_workers == 1 or address is None or task.is_writer:
        return True
    until = clock() + PATIENCE_SECONDS
    while not listens(address):
        if clock() >= until:
            return False
        sleep(_SECONDS_BETWEEN_LOOKS)
    return True
