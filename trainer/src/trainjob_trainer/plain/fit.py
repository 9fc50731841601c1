"""`keras.Model.fit` of an unmodified script: it trains, or scores checkpoints in the evaluator."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from trainjob_trainer.edge import leave
from trainjob_trainer.environment import is_smoke
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.plain.process import assigned, current_process
from trainjob_trainer.plain.strategy import bring_in, meet
from trainjob_trainer.reporting.progress import ProgressFile
from trainjob_trainer.task import Task, of_the_job


def manage_fit(trainer: ModuleType) -> None:
    """Wrap `fit`, `evaluate` and `predict` in `keras.src.backend.tensorflow.trainer`; their signatures stay.

    A `fit` within another `fit` (a callback that trains a second model) is left to Keras.
    """
    from trainjob_trainer.plain.keras_repair import fit_class  # noqa: PLC0415 - needs Keras 3

    kind = fit_class(trainer)
    original = kind.fit
    if hasattr(original, "_trainjob_managed"):
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        process = current_process()
        call = process.call
        if call is not None:
            within, call.has_begun = call.has_begun, True
            with assigned(process, "call", None if within else call):
                return original(self, *args, **kwargs)
        if not _is_in_a_job():
            return original(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
        if process.task.is_evaluator:
            from trainjob_trainer.plain.evaluation import follow_training  # noqa: PLC0415 - needs all of Keras

            follow_training(process, self, arguments)
        if process.task.type not in ("chief", "worker"):
            return original(self, **arguments)
        from trainjob_trainer.plain.training import train  # noqa: PLC0415 - needs all of Keras

        return train(process, original, self, arguments)

    fit._trainjob_managed = True  # type: ignore[attr-defined]
    kind.fit = fit
    kind.evaluate, kind.predict = _reported(kind.evaluate, {"steps": 1}), _reported(kind.predict, {})
    train_on_batch = kind.train_on_batch

    @functools.wraps(train_on_batch)
    def joint_train_on_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        bring_in(self)
        return train_on_batch(self, *args, **kwargs)

    kind.train_on_batch = joint_train_on_batch


def refuse_legacy_fit(training: ModuleType) -> None:
    """Wrap `fit` in `tf_keras.src.engine.training`: in a job it raises InvalidConfiguration.

    It would save no checkpoints, and the evaluator would train too.
    """
    kind: Any = training.Model
    original = kind.fit
    if hasattr(original, "_trainjob_managed"):
        return

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_in_a_job():
            raise InvalidConfiguration(
                "fit() of tf_keras isn't supported in a job: it would have no checkpoints, and the evaluator "
                "would train too. Use `import keras` (Keras 3; tf.keras is that once TF_USE_LEGACY_KERAS is "
                "unset), or train in a loop of your own with trainjob_trainer.init()"
            )
        return original(self, *args, **kwargs)

    fit._trainjob_managed = True  # type: ignore[attr-defined]
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


def _is_in_a_job() -> bool:
    return bool(of_the_job(os.environ).get("TF_CONFIG", "").strip())


def _reported(original: Callable[..., Any], in_smoke: Mapping[str, Any]) -> Callable[..., Any]:
    """Make `evaluate` or `predict` report its progress, whether a script or a callback calls it.

    A smoke test calls it with the arguments `in_smoke`.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def score(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        process = current_process() if _is_in_a_job() else None
        if process is not None and is_smoke(os.environ):
            bound.arguments.update(in_smoke)
        if process is not None and process.task.is_evaluator:
            with assigned(process, "is_scoring", True):
                return original(*bound.args, **bound.kwargs)
        if process is not None:
            meet(process, self, original.__name__)
            from trainjob_trainer.plain.callbacks import with_scoring  # noqa: PLC0415 - as above
            from trainjob_trainer.plain.calls import errors_explained  # noqa: PLC0415 - as above

            bound.arguments["callbacks"] = with_scoring(bound.arguments.get("callbacks"), process.progress)
            with errors_explained():
                return original(*bound.args, **bound.kwargs)
        return original(*bound.args, **bound.kwargs)

    return score
