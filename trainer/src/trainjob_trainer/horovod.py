"""A script's use of Horovod: where its ring can't be, one sentence says so.

Without it, `hvd.init()` in a process without a rank would train alone, as one process of one.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from trainjob_trainer.edge import leave
from trainjob_trainer.errors import InvalidConfiguration, TrainerError
from trainjob_trainer.reporting.progress import ProgressFile
from trainjob_trainer.task import Task


def guard_init(module: ModuleType) -> None:
    """Have `hvd.init()`, of each framework, end a process without a rank.

    `module` is `horovod.common.basics`.
    """
    original = module.HorovodBasics.init

    @functools.wraps(original)
    def init(*args: Any, **kwargs: Any) -> Any:
        task = None
        try:
            task = Task.from_environment(os.environ)
            check_rank(task, os.environ)
        except TrainerError as error:
            leave(task, ProgressFile.from_environment(os.environ), error)
        return original(*args, **kwargs)

    module.HorovodBasics.init = init


def check_rank(task: Task, env: Mapping[str, str]) -> None:
    """Raise InvalidConfiguration if this process of a job has no rank."""
    if task.is_evaluator:
        raise InvalidConfiguration(
            "hvd.init(): the evaluator has no rank in Horovod's ring; set spec.evaluator.replicas to 0, or "
            "call it only where TF_CONFIG's task.type is not evaluator"
        )
    if task.has_peers and "HOROVOD_RANK" not in env:
        raise InvalidConfiguration(
            f"hvd.init(): {task.replica} has no rank, and would train alone; Horovod's ring needs"
            " spec.restartStrategy InPlace and a job without parameter servers"
        )


def explain_import(error: Exception) -> ImportError:
    """Return the error for a script whose `horovod.tensorflow` can't be imported."""
    version = getattr(sys.modules.get("tensorflow"), "__version__", None)
    beside = f"TensorFlow {version}" if version else "this TensorFlow"
    cause = " ".join(str(error).split())[:200]
    return ImportError(
        f"Horovod doesn't work with {beside} here ({type(error).__name__}: {cause}). Its last release, "
        "0.28.1, works with TensorFlow 2.12: use an image that has both, built as in "
        "examples/horovod.Dockerfile, or tf.distribute.MultiWorkerMirroredStrategy",
        name="horovod.tensorflow",
    )
