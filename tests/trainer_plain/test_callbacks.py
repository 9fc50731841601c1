"""What is told of an evaluation or a prediction that a script or one of its callbacks asks for."""

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from trainjob_trainer import Task
from trainjob_trainer.evaluation import Scoring
from trainjob_trainer.keras.callbacks import with_scoring
from trainjob_trainer.keras.trainer import JobTrainer, KerasTrainer
from trainjob_trainer.reporting.progress import ProgressFile


class Told(ProgressFile):
    def __init__(self) -> None:
        super().__init__(None)
        self.words: list[tuple[str, int | None]] = []

    def update(self, **changes: Any) -> None:
        super().update(**changes)
        self.words.append((self.last.state, self.last.evaluated_batches))


@pytest.mark.parametrize("name", ["evaluate", "predict"])
def test_each_batch_is_told_and_then_goes_on_what_was_before(name: str) -> None:
    progress = Told()
    progress.update(state="training")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    x = np.zeros((6, 2), "float32")
    given = {"y": x[:, :1]} if name == "evaluate" else {}
    getattr(model, name)(x, **given, batch_size=2, verbose=0, callbacks=with_scoring(None, progress))
    scoring = [("evaluating", batches) for batches in (None, 1, 2, 3)]
    assert progress.words == [("training", None), *scoring, ("training", None)]
    once = [Scoring(progress)]  # a second one would go on with the first one's state
    assert with_scoring(once, progress) is once


@pytest.mark.parametrize(("role", "told"), [("worker", True), ("evaluator", False)])
def test_a_jobs_evaluate_and_predict_are_told(role: str, told: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Trainer(JobTrainer):
        distribute_strategy = None

        def __init__(self) -> None:
            """Build nothing."""

    process = SimpleNamespace(
        task=Task(role, 0, {}), progress=Told(), call=None, is_scoring=False, manages=False
    )
    monkeypatch.setattr("trainjob_trainer.keras.trainer.current_session", lambda: process)
    for name in ("evaluate", "predict"):
        monkeypatch.setattr(KerasTrainer, name, lambda _, *args, **kwargs: kwargs.get("callbacks", args[-1]))
    ours, own = Trainer(), keras.callbacks.Callback()
    assert ours.evaluate([1], callbacks=own) is own, "without a job nothing is changed"
    process.manages = True
    for callbacks in (
        ours.evaluate([1], callbacks=own, _use_cached_eval_dataset=True),
        ours.predict([1], callbacks=own),
    ):
        assert [callbacks[0] is own, type(callbacks[1])] == [True, Scoring] if told else callbacks is own
    whole = keras.callbacks.CallbackList([own])
    assert ours.evaluate([1], callbacks=whole) is whole, "a validation of fit has ours in its list"
