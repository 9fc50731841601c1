"""A training in this very process, by itself: nothing of it outlasts a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainjob_trainer import Environment, Task, checkpoint_manager
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.checkpoint_manager import BackgroundWriter
from trainjob_trainer.edge import StopRequest
from trainjob_trainer.library import _Request, _train
from trainjob_trainer.recipe import Recipe
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.progress import ProgressFile

STRATEGY = tf.distribute.get_strategy()


class Killed(BaseException):
    """Not an Exception: nothing may tidy up after it."""


class Interrupting(ProgressFile):
    """Ends the process, or asks it to stop, at the first call that reaches a step."""

    def __init__(self, step: int, end: Callable[[], None]) -> None:
        super().__init__(None)
        self._step_to_end_at, self._end = step, end

    def update(self, **changes: Any) -> None:
        super().update(**changes)
        if changes.get("step_seconds") is not None and changes["step"] >= self._step_to_end_at:
            self._end()


def replica(
    folder: Path,
    uid: str = "mine",
    progress: ProgressFile | None = None,
    *,
    killed_at: int | None = None,
    stopped_at: int | None = None,
) -> Replica:
    stop = StopRequest()
    if killed_at is not None:
        progress = Interrupting(killed_at, _kill)
    if stopped_at is not None:
        progress = Interrupting(stopped_at, stop._requested.set)
    task = Task("worker", 0, {})
    environment = Environment.from_environment(
        {"TRAINJOB_OUTPUT_DIR": str(folder), "TRAINJOB_UID": uid}, task
    )
    store = CheckpointStore(environment.checkpoint_dir)
    return Replica(task, environment, store, progress or ProgressFile(None), stop)


def record_writers(monkeypatch: pytest.MonkeyPatch) -> list[BackgroundWriter]:
    """All that are made: what plays a killed process leaves a thread behind, which may still write."""
    made: list[BackgroundWriter] = []

    def build(*arguments: Any) -> BackgroundWriter:
        made.append(BackgroundWriter(*arguments))
        return made[-1]

    monkeypatch.setattr(checkpoint_manager, "BackgroundWriter", build)
    return made


def _kill() -> None:
    raise Killed


def model() -> Any:
    net = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    return net


def examples() -> Any:
    inputs = np.ones((8, 3), "float32")
    return tf.data.Dataset.from_tensor_slices((inputs, inputs[:, :1]))


def train(folder: Path, steps: int, build: Any = model, *, test: Any = None, **settings: Any) -> Any:
    recipe = Recipe(steps=steps, global_batch=4, seed=1, **settings)
    return _train(replica(folder), STRATEGY, _Request(build, examples, examples, recipe, test))
