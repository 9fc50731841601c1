"""Losses and gradients that are NaN: what is told, and what happens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from trainjob_trainer import NotFinite, Task
from trainjob_trainer.checkpoint.snapshot import NamedArray
from trainjob_trainer.keras.not_finite import FiniteWatch, Found, OnNan, workers_of

TWO = Task("worker", 0, {"worker": ("a:1", "b:1")})
CHIEF = Task("worker", 0, {"worker": ("a:1",), "chief": ("b:1",)})
ALONE = Task("worker", 0, {})


@pytest.mark.parametrize(
    ("first", "task", "step", "workers"),
    [
        ([0, 0], TWO, 0, []),
        ([0, 7], TWO, 7, ["worker-1"]),
        ([8, 7], TWO, 7, ["worker-1"]),
        ([7, 7], TWO, 7, ["worker-0", "worker-1"]),
        ([0, 0, 3, 3], TWO, 3, ["worker-1"]),
        ([2, 0], CHIEF, 2, ["chief-0"]),
        ([0, 5], CHIEF, 5, ["worker-0"]),
        ([4], ALONE, 4, ["worker-0"]),
        ([0, 4], ALONE, 4, ["worker-0"]),
    ],
)
def test_whose_step_it_was(first: list[int], task: Task, step: int, workers: list[str]) -> None:
    found = Found(first)
    assert found.step == step
    assert workers_of(found, task) == workers


def test_stopping_names_step_and_worker() -> None:
    watch = FiniteWatch(OnNan.STOP, TWO)
    watch.look(Found([0, 0]), 100)
    with pytest.raises(NotFinite, match=r"^step 103: the loss or a gradient of worker-1 is NaN or infinite"):
        watch.look(Found([0, 3]), 100)


def test_skipping_counts_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    watch = FiniteWatch(OnNan.SKIP, TWO)
    assert watch.metrics == {"skipped_steps": 0}
    watch.look(Found([0, 3], skipped=2), 100)
    watch.look(Found([1, 0], skipped=1), 110)
    assert watch.metrics == {"skipped_steps": 3}
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "trainjob: step 103: the loss or a gradient of worker-1 is NaN or infinite; "
        "updates left out so far: 2",
        "trainjob: step 111: the loss or a gradient of worker-0 is NaN or infinite; "
        "updates left out so far: 3",
    ]


def test_ignoring_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    watch = FiniteWatch(OnNan.IGNORE, TWO)
    watch.look(Found([1, 1]), 0)
    watch.check_weights(*weights([np.nan]))
    assert (watch.metrics, capsys.readouterr().err) == ({}, "")


def weights(value: Any, *, trainable: bool = True) -> tuple[Any, Any]:
    variable = SimpleNamespace(path="dense/kernel", trainable=trainable)
    return {"model": [variable]}, {"model": [NamedArray("dense/kernel", np.asarray(value))]}


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", ml_dtypes.bfloat16])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_nan_are_not_saved(bad: float, dtype: Any) -> None:
    watch = FiniteWatch(OnNan.STOP, TWO)
    watch.check_weights(*weights(np.full(3000, 60.0, dtype)))
    watch.check_weights(*weights(np.array([1, bad], dtype), trainable=False))
    with pytest.raises(NotFinite, match="worker-0: the weights dense/kernel are NaN or infinite"):
        watch.check_weights(*weights(np.array([1, bad], dtype)))
