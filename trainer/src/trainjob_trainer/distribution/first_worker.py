"""The first worker, whose process coordinates the others: they wait for it, and notice when it is gone."""

from __future__ import annotations

import contextlib
import functools
import importlib
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

from trainjob_trainer.errors import InvalidConfiguration, PortInUse
from trainjob_trainer.task import Task

_SECONDS_A_LOOK = 1.0


def listens(address: str) -> bool:
    """Return whether `host:port` accepts a connection; an invalid address does not."""
    return _connect(address, _SECONDS_A_LOOK) is None


def is_gone(address: str | None) -> bool:
    """Return whether `host:port` refuses a connection; a host that does not respond may still be there."""
    return isinstance(_connect(address or "", _SECONDS_A_LOOK / 2), ConnectionRefusedError)


def _connect(address: str, seconds: float) -> Exception | None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except (OSError, ValueError, OverflowError) as error:
        return error
    return None


PATIENCE_SECONDS = 10.0
"""After this time TensorFlow waits, and logs for which worker."""
_SECONDS_BETWEEN_LOOKS = 0.01


def wait_for_first_worker(
    task: Task,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait `PATIENCE_SECONDS` at most for the first worker, and return whether it listens.

    If no process listens yet, TensorFlow retries only after a second; all workers start at the same moment.
    The first worker itself and a single worker do not wait; for them it is true.
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


_SECONDS_WITH_AGENT = 86_400.0
_SECONDS_ALONE = 60.0
"""Longer than a migrated machine pauses. Without agents nothing else ends the wait for a dead worker."""


def bear_pauses(*, has_agent: bool, service: Any = None) -> None:
    """Let the service wait longer for heartbeats; call this before a strategy of several workers is built.

    By default each worker whose heartbeat is ten seconds late counts as dead, which ends training on a
    machine that was migrated or slept. An agent notices a worker's death at once, without TensorFlow.
    """
    service = service or importlib.import_module("tensorflow.python.eager.context").context()
    seconds = _SECONDS_WITH_AGENT if has_agent else _SECONDS_ALONE
    service.configure_coordination_service = functools.partial(
        service.configure_coordination_service, heartbeat_timeout_in_ms=int(1000 * seconds)
    )


@contextlib.contextmanager
def explained(task: Task) -> Iterator[None]:
    """Explain errors of code that makes TensorFlow listen, and say what to do.

    Raises:
        InvalidConfiguration: an operation ran before; workers can't be connected any more.
        PortInUse: another process uses this replica's address.
    """
    try:
        yield
    except Exception as error:
        if "must be configured at program startup" in str(error):
            raise InvalidConfiguration(
                "a TensorFlow operation ran before the distribution strategy was built: workers can only be "
                "connected before the first one, so build the strategy at the script's beginning"
            ) from error
        if "start gRPC server" in str(error):
            raise PortInUse(
                f"{task.replica} cannot listen on {task.address}: the port is taken by another process"
            ) from error
        raise
