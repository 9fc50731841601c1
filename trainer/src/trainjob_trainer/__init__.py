"""The TensorFlow half of TrainJob: one Keras model and one tf.data pipeline on all workers of a job.

    train_and_evaluate(model, train, heldout, epochs=20, global_batch=64)      a complete training
    interleaved(files, parse, part=part)                                       examples in many files
    run = init()                                                               a training loop of your own
    report(step, total_steps=steps)                                            of a loop with Horovod
    load_checkpoint(model, "output/checkpoints")                               what a job has trained
    Task, Environment, ExitCode, TrainerError ...                              usable without TensorFlow

TensorFlow is imported with the first name that needs it, so the agent, which is in this package too, starts
without it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trainjob_trainer.contract.exits import ExitCode
from trainjob_trainer.errors import (
    CheckpointMismatch,
    CheckpointUnavailable,
    CheckpointUnreadable,
    Fenced,
    InvalidConfiguration,
    NotFinite,
    OutputFinished,
    OutputFull,
    OutputTaken,
    OutputUnwritable,
    PeerLost,
    PortInUse,
    Preempted,
    Stalled,
    TrainerError,
    WeightsDiverged,
)

if TYPE_CHECKING:
    from trainjob_trainer.custom_loop import Run, init
    from trainjob_trainer.environment import Environment
    from trainjob_trainer.keras.model import load_checkpoint
    from trainjob_trainer.keras.pipelines import Part, interleaved
    from trainjob_trainer.library import Result, train_and_evaluate
    from trainjob_trainer.reporting.progress import report
    from trainjob_trainer.task import Task

__all__ = [
    "CheckpointMismatch",
    "CheckpointUnavailable",
    "CheckpointUnreadable",
    "Environment",
    "ExitCode",
    "Fenced",
    "InvalidConfiguration",
    "NotFinite",
    "OutputFinished",
    "OutputFull",
    "OutputTaken",
    "OutputUnwritable",
    "Part",
    "PeerLost",
    "PortInUse",
    "Preempted",
    "Result",
    "Run",
    "Stalled",
    "Task",
    "TrainerError",
    "WeightsDiverged",
    "init",
    "interleaved",
    "load_checkpoint",
    "report",
    "train_and_evaluate",
]

_LAZY = {
    "Environment": "trainjob_trainer.environment",
    "Part": "trainjob_trainer.keras.pipelines",
    "Result": "trainjob_trainer.library",
    "Run": "trainjob_trainer.custom_loop",
    "Task": "trainjob_trainer.task",
    "init": "trainjob_trainer.custom_loop",
    "interleaved": "trainjob_trainer.keras.pipelines",
    "load_checkpoint": "trainjob_trainer.keras.model",
    "report": "trainjob_trainer.reporting.progress",
    "train_and_evaluate": "trainjob_trainer.library",
}


def __getattr__(name: str) -> Any:
    """Import a name's module on first use (PEP 562)."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
