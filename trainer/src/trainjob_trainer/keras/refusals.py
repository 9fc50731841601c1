"""What a job's process refuses of Keras: each worker would train a model of its own, without a word."""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from trainjob_trainer.edge import leave
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.reporting.progress import ProgressFile
from trainjob_trainer.session import current_session
from trainjob_trainer.task import Task


def refuse_legacy_fit(training: ModuleType) -> None:
    """Wrap `fit` in `tf_keras.src.engine.training`: in a job it raises InvalidConfiguration.

    It would save no checkpoints, and the evaluator would train too.
    """
    kind: Any = training.Model
    original = kind.fit

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if current_session().manages:
            raise InvalidConfiguration(
                "fit() of tf_keras isn't supported in a job: it would have no checkpoints, and the evaluator "
                "would train too. Use `import keras` (Keras 3; tf.keras is that once TF_USE_LEGACY_KERAS is "
                "unset), or train in a loop of your own with trainjob_trainer.init()"
            )
        return original(self, *args, **kwargs)

    kind.fit = fit


def refuse_other_backend(config: ModuleType) -> None:
    """End a process whose Keras has another back end than TensorFlow where each worker would train all alone.

    `config` is `keras.src.backend.config`.
    """
    task = Task.from_environment(os.environ)
    if config.backend() == "tensorflow" or not (task.num_workers > 1 or task.is_evaluator):
        return
    error = InvalidConfiguration(
        f"Keras's back end is {config.backend()}, and only with TensorFlow do workers train together and "
        "an evaluator score what they save: set KERAS_BACKEND=tensorflow, or train with one worker and "
        "`evaluator: {replicas: 0}`"
    )
    leave(task, ProgressFile.from_environment(os.environ), error)
