"""Weights to begin with: those of an earlier model, of another job or of a colleague."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainjob_trainer.distribution.collective import check_same_weights
from trainjob_trainer.errors import InvalidConfiguration, first_line
from trainjob_trainer.reporting.lines import announce
from trainjob_trainer.task import Task

ENDINGS = (".keras", ".weights.h5")


def load_initial_weights(strategy: Any, task: Task, model: Any, path: str) -> None:
    """Load a file on every worker, and prove that all have the same.

    Args:
        strategy: of the model.
        task: this replica.
        model: built; its optimizer stays new.
        path: a file that every worker can read.

    Raises:
        InvalidConfiguration: there is no such file here, or it is another model's.
        CheckpointMismatch: the workers read different weights.
    """
    if not path.endswith(ENDINGS):
        raise InvalidConfiguration(
            f"initial_weights: {path} is none of {' or '.join(ENDINGS)}; model.save and model.save_weights "
            "write such files"
        )
    if not Path(path).is_file():
        raise InvalidConfiguration(
            f"initial_weights: {task.replica} finds no file {path}; it must be in the image or on a volume "
            "of every worker"
        )
    try:
        model.load_weights(path)
    except (ValueError, KeyError, TypeError, OSError) as error:
        why = first_line(error)
        raise InvalidConfiguration(f"initial_weights: {path} doesn't fit the model: {why}") from error
    check_same_weights(strategy, task, {"model": model.variables})
    if task.is_writer:
        announce(f"begins with the weights of {path}")
