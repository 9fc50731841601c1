"""The distribution strategy that a replica's role implies."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from trainjob_trainer.distribution.early_operation import (
    explain_early_operation,
    is_early_operation,
    watch_first_operation,
)
from trainjob_trainer.distribution.first_worker import wait_for_first_worker
from trainjob_trainer.distribution.kind import Kind, choose_kind
from trainjob_trainer.distribution.tpu import build_tpu_strategy, named_tpu
from trainjob_trainer.errors import PortInUse
from trainjob_trainer.task import Task

__all__ = ["build_strategy", "explain_early_operation"]

watch_first_operation()


def build_strategy(task: Task, env: Mapping[str, str] | None = None) -> Any:
    """Build it, before any TensorFlow operation runs. Workers wait here for each other.

    Args:
        task: this replica.
        env: the process's environment, replaced by tests.

    Raises:
        InvalidConfiguration, PortInUse: as `explained` has them, `choose_kind` and `tpu.named_tpu`.
    """
    tpu = None if task.is_evaluator else named_tpu(os.environ if env is None else env)
    kind = choose_kind(task, devices=len(_devices()), tpu=tpu)
    if kind is not Kind.COORDINATED:
        wait_for_first_worker(task)
    with explained(task):
        _grow_memory_on_demand()
        return _build(kind, task, tpu)


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


def _build(kind: Kind, task: Task, tpu: str | None) -> Any:
    if kind is Kind.COORDINATED:
        from trainjob_trainer.distribution.coordinated import build_coordinated_strategy  # noqa: PLC0415

        return build_coordinated_strategy(task)
    if kind is Kind.TPU and tpu is not None:
        return build_tpu_strategy(tpu)
    if kind is Kind.MULTI_WORKER:
        return tf.distribute.MultiWorkerMirroredStrategy()
    if kind is Kind.MIRRORED:
        return tf.distribute.MirroredStrategy(_devices())
    if kind is Kind.EVALUATOR:
        return tf.distribute.OneDeviceStrategy(_devices()[0])
    return tf.distribute.get_strategy()


def _devices() -> list[str]:
    """GPUs, or the processor; each as many times as it has been divided. Asking starts nothing."""
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    divided = tf.config.get_logical_device_configuration
    count = sum(len(divided(one) or [one]) for one in tf.config.list_physical_devices(kind))
    return [f"{kind}:{number}" for number in range(count)]


def _grow_memory_on_demand() -> None:
    """Processes share a GPU on a laptop; TensorFlow would reserve all of it for the first."""
    for gpu in tf.config.list_physical_devices("GPU"):
        with contextlib.suppress(RuntimeError, ValueError):  # set by the user before, or in use already
            tf.config.experimental.set_memory_growth(gpu, True)
