"""The first worker, whose process coordinates the others: they wait for it, and notice that it is gone."""

from __future__ import annotations

import functools
import importlib
import socket
import time
from collections.abc import Callable
from typing import Any

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
    """Return whether the worker that coordinates the others listens, after `PATIENCE_SECONDS` at most.

    The first worker itself, and one that is alone, wait for no other; for them it is true.
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


# In between: a pause of the machine isn't the death of all workers.
#
# By TensorFlow's default the service takes each worker for dead, its own process too, whose heartbeat is ten
# seconds late by the clock on the wall. Then it ends training on a machine that was moved, or a laptop that
# has slept, for so long, or whose clock was set.


_SECONDS_WITH_AGENT = 86_400.0
_SECONDS_ALONE = 60.0
"""Longer than the pause of a machine that is moved. Nothing else ends a wait for the dead without agents."""


def bear_pauses(*, has_agent: bool, service: Any = None) -> None:
    """To be called before a strategy of several workers is built: let the service wait longer for heartbeats.

    An agent notices a worker's death at once, without TensorFlow's help.
    """
    service = service or importlib.import_module("tensorflow.python.eager.context").context()
    seconds = _SECONDS_WITH_AGENT if has_agent else _SECONDS_ALONE
    service.configure_coordination_service = functools.partial(
        service.configure_coordination_service, heartbeat_timeout_in_ms=int(1000 * seconds)
    )
