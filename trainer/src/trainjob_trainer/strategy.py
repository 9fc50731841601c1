"""The distribution strategy that a replica's role implies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from trainjob_trainer.early_operation import (
    explain_early_operation,
    is_early_operation,
    watch_first_operation,
)
from trainjob_trainer.errors import PortInUse
from trainjob_trainer.first_worker import wait_for_first_worker
from trainjob_trainer.task import Task

__all__ = ["build_strategy", "explain_early_operation"]

watch_first_operation()


def build_strategy(task: Task) -> Any:
    """Build it, before any TensorFlow operation runs. Workers wait here for each other.

    A cluster of one is MultiWorkerMirrored too, so that growing a job changes nothing. The evaluator gets
    a strategy of its own, on one device: a second one would need its batches padded, and metrics that are
    not weighted would count the padding.

    Raises:
        InvalidConfiguration, PortInUse: as `explained` has them.
    """
    if not task.is_coordinator:
        wait_for_first_worker(task)
    with explained(task):
        _grow_memory_on_demand()
        return _strategy(task)


@contextlib.contextmanager
def explained(task: Task) -> Iterator[None]:
    """Around what makes TensorFlow listen: its errors in words that say what to do.

    Raises:
        InvalidConfiguration: an operation ran before, with the user's line.
        PortInUse: this replica's address is taken.
    """
    try:
        yield
    except RuntimeError as error:
        if is_early_operation(error):
            raise explain_early_operation() from error
        raise
    except tf.errors.OpError as error:
        if "start gRPC server" in str(error):
            raise PortInUse(
                f"{task.replica} cannot listen on {task.address}: the port is taken by another process"
            ) from error
        raise


def _strategy(task: Task) -> Any:
    gpus = tf.config.list_physical_devices("GPU")
    if task.is_coordinator:
        from trainjob_trainer.parameter_server.cluster import build_coordinated_strategy  # noqa: PLC0415

        return build_coordinated_strategy(task)
    if task.is_distributed:
        return tf.distribute.MultiWorkerMirroredStrategy()
    if task.is_evaluator:
        return tf.distribute.OneDeviceStrategy("/GPU:0" if gpus else "/CPU:0")
    return tf.distribute.MirroredStrategy() if len(gpus) > 1 else tf.distribute.get_strategy()


def _grow_memory_on_demand() -> None:
    """Processes share a GPU on a laptop; TensorFlow would reserve all of it for the first."""
    for gpu in tf.config.list_physical_devices("GPU"):
        with contextlib.suppress(RuntimeError, ValueError):  # set by the user before, or in use already
            tf.config.experimental.set_memory_growth(gpu, True)
