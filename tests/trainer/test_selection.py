"""What the values of a metric do to a training's checkpoints and to its end, without a training."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from support.trainer.alone import STRATEGY, replica
from trainjob_trainer import Environment, InvalidConfiguration, Preempted, Recipe, Task
from trainjob_trainer.checkpoint.snapshot import NamedArray
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.checkpoint_manager import CheckpointManager, Ending
from trainjob_trainer.early_stopping import (
    EVALUATOR_PATIENCE,
    MonitoredSelection,
    Monitoring,
    Rule,
    Source,
    find_source,
)
from trainjob_trainer.edge import StopRequest
from trainjob_trainer.engine.metric_state import LAST_EPOCH, saved_results
from trainjob_trainer.evaluation import tell_scoring
from trainjob_trainer.recipe import TrainingPlan
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.progress import ProgressFile

TOTAL, EPOCH = 100, 10


class Training:
    """A course whose steps are only counted; the one weight is the number of steps."""

    def __init__(
        self,
        folder: Path,
        rule: Rule,
        source: Source,
        *,
        keep_best: bool = True,
        total: int = TOTAL,
        every: int = EPOCH,
    ) -> None:
        self.folder = folder
        self.meanwhile: list[Callable[[], object]] = []
        self.values: list[float] = []
        self.is_over = False
        self.replica = replica(folder)
        self.replica.store.keep = 2
        self.weight = tf.Variable(0.0)
        self.exported: list[float] = []
        self.now, self.metrics = 0.0, {"loss": 0.0}
        plan = TrainingPlan(total, EPOCH, every, 8)
        self.selection = MonitoredSelection(
            self.replica,
            STRATEGY,
            Monitoring(rule, keep_best, source),
            total,
            self.score_here if source is Source.HERE else None,
            clock=lambda: self.now,
            sleep=self._sleep,
        )
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

    def _sleep(self, seconds: float) -> None:
        del seconds
        self.now += 60
        if self.meanwhile:
            self.meanwhile.pop(0)()

    def start(self) -> int:
        newest = self.replica.store.latest()
        saved = self.replica.store.read(newest) if newest else {}
        step = newest.step if newest else 0
        self.weight.assign(step)
        self.is_over = self.checkpoints.resume(saved, step)
        return step

    def scored(self, step: int, loss: float) -> None:
        """As an evaluator."""
        folder = self.folder / "evaluator"
        folder.mkdir(exist_ok=True)
        with (folder / "evaluations.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "metrics": {"loss": loss}}) + "\n")

    def score_here(self, step: int) -> None:
        self.scored(step, self.values[step // EPOCH - 1])

    def epoch(self, step: int, loss: float = 0.0) -> bool:
        """Train up to `step`, and return whether that is the end."""
        self.weight.assign(step)
        self.metrics = {"loss": loss}
        self.checkpoints.epoch_ended(step, self.metrics)
        return self.checkpoints.between_steps(step)

    def run(self, values: list[float], *, until: int = TOTAL) -> Ending | None:
        """Train on as a process would, with an epoch's value each; None if it is cut off at `until`."""
        self.values = values
        step = self.start()
        while step < min(until, 10 * len(values)) and not self.is_over:
            step += EPOCH
            self.is_over = self.epoch(step, values[step // EPOCH - 1])
        if step == until and not self.is_over and until < 10 * len(values):
            self.checkpoints._writer.settle()
            return None
        return self.checkpoints.end(step, self.metrics)


def training(
    folder: Path, source: Source = Source.TRAINING, patience: int | None = 2, **more: Any
) -> Training:
    monitor = "loss" if source is Source.TRAINING else "val_loss"
    return Training(folder, Rule(monitor, patience=patience), source, **more)


VALUES = [5.0, 3.0, 1.0, 2.0, 4.0, 6.0, 0.5, 7.0, 8.0, 9.0]


@pytest.mark.parametrize("source", [Source.TRAINING, Source.HERE])
def test_training_ends_after_so_many_values_and_hands_over_the_best(
    source: Source, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = training(tmp_path, source)
    ending = one.run(VALUES)
    assert ending is not None
    assert (ending.step, ending.model_step, ending.metrics) == (50, 30, {"loss": 1.0})
    unit = "epochs" if source is Source.TRAINING else "checkpoints"
    words = f"{one.selection._rule.monitor} has not improved for 2 {unit}; best 1 at step 30"
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


@pytest.mark.parametrize("source", [Source.TRAINING, Source.HERE])
@pytest.mark.parametrize("cut", [10, 30, 40])
def test_one_that_is_cut_off_ends_as_one_that_is_not(source: Source, cut: int, tmp_path: Path) -> None:
    whole = training(tmp_path / "whole", source).run(VALUES)
    assert training(tmp_path / "cut", source).run(VALUES, until=cut) is None
    assert training(tmp_path / "cut", source).run(VALUES) == whole
    finals = [CheckpointStore(tmp_path / name / "checkpoints").final() for name in ("whole", "cut")]
    assert finals[0] == finals[1]


@pytest.mark.parametrize("source", [Source.TRAINING, Source.HERE])
def test_one_that_is_cut_off_in_its_end_only_ends(source: Source, tmp_path: Path) -> None:
    whole = training(tmp_path, source).run(VALUES)
    again = training(tmp_path, source)
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


def by_evaluator(folder: Path, patience: int | None = 2) -> Training:
    (folder / "evaluator").mkdir(exist_ok=True)
    one = training(folder, Source.EVALUATOR, patience)
    one.start()
    return one


def test_an_evaluators_results_decide_once_they_are_there(tmp_path: Path) -> None:
    one = by_evaluator(tmp_path, patience=1)
    assert [one.epoch(step) for step in (10, 20, 30)] == [False] * 3
    one.scored(10, 1.0)
    tell_scoring(tmp_path / "evaluator", 30)
    assert not one.epoch(40)
    one.scored(30, 2.0)
    assert not one.epoch(50)
    one.scored(50, 3.0)
    assert one.epoch(60)
    one.checkpoints._writer.settle()
    # 10 had gone when its result came, 30 was being scored.
    assert one.replica.store.steps() == [30, 50, 60]


def test_the_last_checkpoints_result_is_waited_for(tmp_path: Path) -> None:
    one = by_evaluator(tmp_path)
    one.epoch(10)
    one.scored(10, 2.0)
    one.epoch(20)
    one.meanwhile = [lambda: None, lambda: one.scored(20, 1.0)]
    reports = []
    one.meanwhile.insert(0, lambda: reports.append(one.replica.progress.last.state))
    assert one.checkpoints.end(20, {}).model_step == 20
    assert (reports, one.replica.progress.last.state) == (["waiting"], "saving")
    assert one.now == 180


def test_an_evaluator_that_shows_no_sign_of_life_is_not_waited_for_any_longer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = by_evaluator(tmp_path)
    one.epoch(10)
    one.scored(10, 2.0)
    one.epoch(20)
    one.meanwhile = [lambda: None, lambda: tell_scoring(tmp_path / "evaluator", 20)]
    assert one.checkpoints.end(20, {}).model_step == 10
    assert one.now == 120 + EVALUATOR_PATIENCE
    assert "no result for step 20, and nothing from the evaluator for 10 minutes" in capsys.readouterr().err


def test_asked_to_stop_while_it_waits_it_does(tmp_path: Path) -> None:
    one = by_evaluator(tmp_path)
    one.epoch(10)
    one.meanwhile = [one.replica.stop._requested.set]
    with pytest.raises(Preempted, match="saved step 10"):
        one.checkpoints.end(10, {})
    assert one.replica.store.final() is None


def test_an_earlier_trainings_results_are_not_this_ones(tmp_path: Path) -> None:
    training(tmp_path).scored(10, 0.1)
    one = by_evaluator(tmp_path)
    one.epoch(10)
    one.scored(10, 5.0)
    one.epoch(20)
    assert one.selection.decision.best == (10, 5.0)


def test_a_result_of_a_checkpoint_that_was_lost_is_passed_over(tmp_path: Path) -> None:
    one = by_evaluator(tmp_path)
    for step in (10, 20):
        one.epoch(step)
    one.checkpoints._writer.settle()
    one.scored(20, 1.0)
    one.scored(30, 0.5)
    again = by_evaluator(tmp_path)
    assert again.selection.decision.best == (20, 1.0)


def replica_of(cluster: dict[str, Any], folder: Path, uid: str) -> Replica:
    task = Task("worker", 0, cluster)
    environment = Environment.from_environment(
        {"TRAINJOB_OUTPUT_DIR": str(folder), "TRAINJOB_UID": uid}, task
    )
    store = CheckpointStore(environment.checkpoint_dir)
    return Replica(task, environment, store, ProgressFile(None), StopRequest())


WORKERS = {"worker": ("a:1", "b:1")}


@pytest.mark.parametrize(
    ("monitor", "cluster", "uid", "source"),
    [
        ("loss", {}, "", Source.TRAINING),
        ("accuracy", WORKERS, "uid", Source.TRAINING),
        ("val_loss", {}, "", Source.HERE),
        ("val_loss", {**WORKERS, "evaluator": ("c:1",)}, "uid", Source.EVALUATOR),
        ("val_loss", WORKERS, "", Source.EVALUATOR),
    ],
)
def test_where_values_come_from(
    monitor: str, cluster: dict[str, Any], uid: str, source: Source, tmp_path: Path
) -> None:
    recipe = Recipe(monitor=monitor, patience=1)
    assert find_source(recipe, replica_of(cluster, tmp_path, uid), has_epochs=True) is source


def refusal(monitor: str, cluster: dict[str, Any], *, has_epochs: bool = True) -> Callable[[Path], str]:
    def refused(folder: Path) -> str:
        replica = replica_of(cluster, folder, "uid")
        with pytest.raises(InvalidConfiguration) as error:
            find_source(Recipe(monitor=monitor, patience=1), replica, has_epochs=has_epochs)
        return str(error.value)

    return refused


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (
            refusal("val_loss", WORKERS),
            "val_loss is measured by the evaluator, and this job has none; give it",
        ),
        (refusal("loss", {}, has_epochs=False), "train() is endless; monitor val_loss"),
    ],
)
def test_what_nobody_would_measure_is_refused(
    refused: Callable[[Path], str], words: str, tmp_path: Path
) -> None:
    assert words in refused(tmp_path)


def test_an_evaluator_that_is_not_listed_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    find_source(Recipe(patience=1), replica_of(WORKERS, tmp_path, ""), has_epochs=True)
    assert "val_loss is measured by an evaluator; TF_CONFIG lists none" in capsys.readouterr().err
