"""A training in this very process, by itself: nothing of it outlasts a test."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainjob_trainer import Environment, Task
from trainjob_trainer.checkpoint_manager import CheckpointWriter
from trainjob_trainer.edge import StopRequest
from trainjob_trainer.library import Result, _run
from trainjob_trainer.patches import prepare
from trainjob_trainer.reporting.progress import ProgressFile
from trainjob_trainer.session import Session, running_as

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
        if changes.get("state") == "training" and changes.get("step", 0) >= self._step_to_end_at:
            self._end()


def process(
    folder: Path,
    uid: str = "mine",
    progress: ProgressFile | None = None,
    *,
    killed_at: int | None = None,
    stopped_at: int | None = None,
    task: Task = Task("worker", 0, {}),  # noqa: B008 - it is frozen
    **settings: Any,
) -> Session:
    stop = StopRequest()
    if killed_at is not None:
        progress = Interrupting(killed_at, _kill)
    if stopped_at is not None:
        progress = Interrupting(stopped_at, stop._requested.set)
    environment = Environment.from_environment(
        {"TRAINJOB_OUTPUT_DIR": str(folder), "TRAINJOB_UID": uid}, task
    )
    return Session(
        task, environment, progress or ProgressFile(None), stop=stop, manages=True, settings=settings
    )


def record_writers(monkeypatch: pytest.MonkeyPatch) -> list[CheckpointWriter]:
    """All that are made: what plays a killed process leaves a thread behind, which may still write."""
    made: list[CheckpointWriter] = []
    original = CheckpointWriter.__init__

    def build(self: CheckpointWriter, *arguments: Any) -> None:
        original(self, *arguments)
        made.append(self)

    monkeypatch.setattr(CheckpointWriter, "__init__", build)
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


def prepare_fit() -> None:
    """Prepare Keras's `fit` and what its callbacks save, and nothing else of this process."""
    for name in ("backend.tensorflow.trainer", "models.model", "saving.saving_api"):
        prepare(importlib.import_module(f"keras.src.{name}"))


def train(
    folder: Path,
    build: Any = model,
    data: Any = examples,
    heldout: Any = None,
    *callbacks: Any,
    class_weight: Any = None,
    verbose: Any = 0,
    **words: Any,
) -> Result:
    """Train by `train_and_evaluate`; `words` are those of `process`, of which two steps are an epoch."""
    prepare_fit()
    keras.utils.clear_session()  # names of layers are numbered within a process
    me = process(folder, **{"global_batch": 4, "seed": 1, "export": False, **words})
    anywhere = mock.patch("trainjob_trainer.identity.is_users", return_value=False)  # the tests' lines differ
    with running_as(me), anywhere:
        return _run(me, build, data, heldout, callbacks, class_weight, verbose)
