"""The first worker: others wait for it at the start, notice that it is gone, and outlive it at the end."""

from __future__ import annotations

import socket
import sys
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


# Ending: the other workers' processes outlive the first one's script.
#
# TensorFlow's coordination service is in the first worker's process, and no worker tells it that it has
# ended. Ten seconds after a worker's last heartbeat the service prints "The tasks have crashed", in the
# middle of what the first worker still does after training, such as an export.


MOST_SECONDS_TO_OUTLIVE = 45.0
"""Then the process ends: a first worker that waits for it in a collective learns of it by that. Agents take a
finished process that is still there after `stall.LEAVING_SECONDS` for one that hangs."""
_ENDED = "trainjob/first-worker-ended"
_MILLISECONDS_A_QUESTION = 5000


def end_with_first_worker(
    task: Task,
    service: Any = None,
    *,
    is_gone: Callable[[str | None], bool] = is_gone,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """To be called at the process's end, if training is over: wait until the first worker is as far.

    Args:
        task: this replica; the first worker itself tells the others, and waits for nobody.
        service: TensorFlow's context, by which workers exchange words; replaced by tests, as the next ones.
        is_gone: whether nobody listens at an address.
        clock: seconds.
    """
    service = service or _coordination()
    if service is None or not task.is_distributed or task.has_parameter_servers or task.num_workers == 1:
        return
    until = clock() + MOST_SECONDS_TO_OUTLIVE
    try:
        if task.is_writer:
            service.set_config_key_value(_ENDED, "yes")
            return
        while clock() < until and not is_gone(task.writer_address) and not _has_ended(service):
            continue
    except Exception:  # noqa: BLE001 - the first worker is gone, or TensorFlow's connection to it
        return


def _has_ended(service: Any) -> bool:
    try:
        service.get_config_key_value(_ENDED, timeout_in_ms=_MILLISECONDS_A_QUESTION)
    except Exception as error:
        if type(error).__name__ != "DeadlineExceededError":
            raise
        return False
    return True


def _coordination() -> Any:
    """TensorFlow's context, if this process has joined a cluster by it."""
    module: Any = sys.modules.get("tensorflow.python.eager.context")
    context = module.context() if module is not None else None
    return context if context is not None and context.coordination_service is not None else None
