"""Which of TensorFlow's strategies a replica trains under: the decision, without TensorFlow."""

from __future__ import annotations

from enum import Enum
from typing import Any

from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.task import Task


class Kind(Enum):
    """A strategy, by TensorFlow's name if it has one."""

    SINGLE = "one device"
    EVALUATOR = "one device for evaluation"
    MIRRORED = "MirroredStrategy"
    MULTI_WORKER = "MultiWorkerMirroredStrategy"
    COORDINATED = "ParameterServerStrategy"
    TPU = "TPUStrategy"


def choose_kind(task: Task, *, devices: int, tpu: str | None) -> Kind:
    """Choose by the replica's role, and by what there is to compute with.

    A cluster of one is MultiWorkerMirrored too, so that growing a job changes nothing. The evaluator has one
    device: a second one would need its batches padded, and metrics that are not weighted would count that.

    Args:
        task: this replica; none that serves a chief.
        devices: GPUs, or what the processor has been divided into.
        tpu: the name of this process's TPU, if the environment has one.

    Raises:
        InvalidConfiguration: several workers, each with a TPU.
    """
    if task.is_evaluator:
        return Kind.EVALUATOR
    if task.is_coordinator:
        return Kind.COORDINATED
    if tpu is not None:
        if task.num_workers > 1:
            raise InvalidConfiguration(
                f"{task.replica} has the TPU {tpu!r}, and is one of {task.num_workers} workers: a TPU is "
                "trained on by one worker (spec.worker.replicas: 1), which uses all of its cores"
            )
        return Kind.TPU
    if task.is_distributed:
        return Kind.MULTI_WORKER
    return Kind.MIRRORED if devices > 1 else Kind.SINGLE


def is_mirrored(strategy: Any) -> bool:
    """Whether variables are kept alike on all replicas, of one process or of several."""
    return "MirroredExtended" in {kind.__name__ for kind in type(strategy.extended).__mro__}
