"""What the values of a metric do to a training's checkpoints and to its end, without a training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from support.trainer.alone import STRATEGY, examples, model, replica
from trainjob_trainer import InvalidConfiguration, Recipe
from trainjob_trainer.checkpoint.snapshot import NamedArray, json_group
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.checkpoint_manager import CheckpointManager, Ending
from trainjob_trainer.early_stopping import History, Rule, Selection, Value
from trainjob_trainer.engine.metric_state import LAST_EPOCH, saved_results
from trainjob_trainer.library import _Request, _train
from trainjob_trainer.recipe import TrainingPlan

TOTAL, EPOCH = 100, 10


class Training:
    """A course whose steps are only counted; the one weight is the number of steps."""

    def __init__(self, folder: Path, rule: Rule, *, total: int = TOTAL, every: int = EPOCH) -> None:
        self.values: list[float] = []
        self.seen: Callable[[], object] = lambda: None
        self.is_over = False
        self.replica = replica(folder)
        self.replica.store.keep = 2
        self.weight = tf.Variable(0.0)
        self.exported: list[float] = []
        self.metrics = {"loss": 0.0}
        plan = TrainingPlan(total, EPOCH, every, 8)
        score = self._score if rule.is_heldout else None
        self.selection = Selection(self.replica, STRATEGY, rule, total, score)
        self.checkpoints = CheckpointManager(
            self.replica,
            plan,
            self.selection,
            {"model": [self.weight]},
            self._snapshot,
            lambda groups: self.exported.append(float(groups["model"][0].value)),
        )

    def _snapshot(self) -> Any:
        weight = NamedArray("weight", np.array(self.weight.numpy()))
        return {"model": [weight], LAST_EPOCH: saved_results(self.metrics)}

    def start(self) -> int:
        newest = self.replica.store.latest()
        saved = self.replica.store.read(newest) if newest else {}
        step = newest.step if newest else 0
        self.weight.assign(step)
        self.is_over = self.checkpoints.resume(saved, step)
        return step

    def _score(self, step: int) -> dict[str, float]:
        assert float(self.weight.numpy()) == step
        assert step in self.replica.store.steps()
        self.seen()
        return {"loss": self.values[step // EPOCH - 1]}

    def epoch(self, step: int, loss: float = 0.0) -> bool:
        """Train up to `step`, and return whether that is the end."""
        self.weight.assign(step)
        self.metrics = {"loss": loss}
        self.selection.epoch_ended(step, self.metrics)
        return self.checkpoints.between_steps(step)

    def run(self, values: list[float], *, until: int = TOTAL) -> Ending | None:
        """Train on as a process would, with an epoch's value each; None if it is cut off at `until`."""
        self.values = values
        step = self.start()
        while step < min(until, 10 * len(values)) and not self.is_over:
            step += EPOCH
            self.is_over = self.epoch(step, values[step // EPOCH - 1])
        if step == until and not self.is_over and until < 10 * len(values):
            self.checkpoints.writer.settle()
            return None
        return self.checkpoints.end(step, self.metrics)


def training(
    folder: Path, *, heldout: bool = False, patience: int | None = 2, keep_best: bool = True, **more: Any
) -> Training:
    monitor = "val_loss" if heldout else "loss"
    return Training(folder, Rule(monitor, patience=patience, keep_best=keep_best), **more)


VALUES = [5.0, 3.0, 1.0, 2.0, 4.0, 6.0, 0.5, 7.0, 8.0, 9.0]


@pytest.mark.parametrize("heldout", [False, True])
def test_training_ends_after_so_many_values_and_hands_over_the_best(
    heldout: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = training(tmp_path, heldout=heldout)
    ending = one.run(VALUES)
    assert ending is not None
    assert (ending.step, ending.model_step, ending.metrics) == (50, 30, {"loss": 1.0})
    unit = "checkpoints" if heldout else "epochs"
    words = f"{one.selection.rule.monitor} has not improved for 2 {unit}; best 1 at step 30"
    assert ending.stopped_early == words
    assert (
        f"training stopped early at step 50 of 100: {words}; its result is that of step 30;"
        in capsys.readouterr().err
    )
    assert (one.exported, float(one.weight.numpy())) == ([30.0], 30.0)
    final = one.replica.store.final()
    assert final is not None
    assert (final.step, final.ended_at, final.total_steps, final.stopped_early) == (30, 50, 100, words)
    assert one.replica.store.steps() == [30, 40, 50]


@pytest.mark.parametrize("heldout", [False, True])
@pytest.mark.parametrize("cut", [10, 30, 40])
def test_one_that_is_cut_off_ends_as_one_that_is_not(heldout: bool, cut: int, tmp_path: Path) -> None:
    whole = training(tmp_path / "whole", heldout=heldout).run(VALUES)
    assert training(tmp_path / "cut", heldout=heldout).run(VALUES, until=cut) is None
    assert training(tmp_path / "cut", heldout=heldout).run(VALUES) == whole
    finals = [CheckpointStore(tmp_path / name / "checkpoints").final() for name in ("whole", "cut")]
    assert finals[0] == finals[1]


@pytest.mark.parametrize("heldout", [False, True])
def test_one_that_is_cut_off_in_its_end_only_ends(heldout: bool, tmp_path: Path) -> None:
    whole = training(tmp_path, heldout=heldout).run(VALUES)
    again = training(tmp_path, heldout=heldout)
    again.replica.store.clear_final()
    again.metrics = {"loss": 4.0}
    assert again.run(VALUES) == whole
    assert again.exported == [30.0]


def test_asked_for_more_steps_it_goes_on_from_the_last_with_patience_anew(tmp_path: Path) -> None:
    training(tmp_path).run(VALUES)
    more = training(tmp_path, total=200)
    ending = more.run(VALUES)
    assert ending is not None
    assert (ending.step, ending.model_step) == (90, 70)


def test_without_patience_it_goes_to_its_end(tmp_path: Path) -> None:
    ending = training(tmp_path, patience=None).run(VALUES)
    assert ending == Ending(100, 70, {"loss": 0.5})


def test_without_keep_best_the_last_one_counts(tmp_path: Path) -> None:
    one = training(tmp_path, keep_best=False)
    ending = one.run(VALUES)
    assert ending is not None
    assert (ending.step, ending.model_step, one.exported) == (50, 50, [50.0])
    assert one.replica.store.steps() == [40, 50]


def test_without_a_number_the_last_one_counts(tmp_path: Path) -> None:
    ending = training(tmp_path).run([np.nan] * 10)
    assert ending is not None
    assert (ending.step, ending.model_step) == (20, 20)


def test_a_best_one_that_cannot_be_read_makes_way_for_the_next(tmp_path: Path) -> None:
    one = training(tmp_path)
    one.run(VALUES, until=40)
    (tmp_path / "checkpoints" / "step-00000030" / "variables.index").write_bytes(b"torn")
    ending = training(tmp_path).run(VALUES)
    assert ending is not None
    assert (ending.step, ending.model_step) == (50, 40)


def test_an_epoch_that_is_the_best_has_a_checkpoint_where_none_is_due(tmp_path: Path) -> None:
    one = training(tmp_path, every=1000)
    ending = one.run(VALUES)
    assert ending is not None
    assert ending.model_step == 30
    assert one.replica.store.steps() == [30, 50]


def test_an_endless_training_has_no_epochs_to_measure(tmp_path: Path) -> None:
    def endless(step: int) -> Any:
        return examples().repeat().skip(step)

    asked = Recipe(steps=4, global_batch=4, monitor="loss", patience=1)
    with pytest.raises(InvalidConfiguration, match=r"train\(\) is endless; monitor val_loss"):
        _train(replica(tmp_path), STRATEGY, _Request(model, endless, examples, asked))


def test_a_request_to_stop_does_not_wait_for_a_score(tmp_path: Path) -> None:
    one = training(tmp_path, heldout=True)
    stop = one.replica.stop
    patience: list[float] = []
    one.seen = lambda: patience.append(stop.patience_seconds)
    with one.checkpoints.writer.patient():
        before = stop.patience_seconds
        one.run(VALUES)
        assert stop.patience_seconds == before > 0
    assert set(patience) == {0.0}


def test_checkpoints_of_earlier_versions_count(tmp_path: Path) -> None:
    old = {"monitor": "loss", "values": [[10, 1.0]], "since": 0, "total_steps": 100, "read": 7}
    assert History.from_arrays(json_group("history", old), "loss") == History(
        "loss", (Value(10, 1.0),), total_steps=100
    )
