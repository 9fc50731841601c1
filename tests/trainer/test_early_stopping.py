"""A training that ends early and hands over its best checkpoint: real steps of a known course."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from support.trainer.alone import STRATEGY, Killed, examples, record_writers, replica
from support.trainer.processes import jsonl
from trainjob_trainer import InvalidConfiguration, OutputFinished, Preempted
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.early_stopping import build_rule
from trainjob_trainer.engine.metric_state import OverAll
from trainjob_trainer.engine.model_state import build_model
from trainjob_trainer.library import Result, _Request, _train
from trainjob_trainer.recipe import Recipe, check
from trainjob_trainer.reporting.progress import ProgressFile

GOAL = 6
STEPS, EPOCH_STEPS = 40, 2


class Steps(keras.layers.Layer):
    """Its one weight is the number of steps, by an optimizer of rate 1 and a loss that only falls."""

    def build(self, shape: Any) -> None:
        del shape
        self.steps = self.add_weight(shape=(), initializer="zeros", name="steps")

    def call(self, inputs: Any) -> Any:
        return 0.0 * inputs[:, :1] + self.steps


def far(truth: Any, steps: Any) -> Any:
    """How far from the best step the model is."""
    del truth
    return keras.ops.abs(steps - GOAL)


def falling(truth: Any, steps: Any) -> Any:
    del truth
    return -steps


def model() -> Any:
    net = keras.Sequential([keras.Input((3,)), Steps()])
    net.compile(keras.optimizers.SGD(1.0), loss=falling, metrics=[far])
    return net


def recipe(monitor: str, patience: int | None = 2, **more: Any) -> Recipe:
    settings = {"steps": STEPS, "global_batch": 4, "monitor": monitor, "mode": "min", "patience": patience}
    return Recipe(**{**settings, "keep_best": True, "keep": 1, "export": False, **more})


def train(folder: Path, settings: Recipe, uid: str = "mine", **more: Any) -> Result:
    check(settings)
    keras.utils.clear_session()  # names of layers are numbered within a process
    here = replica(folder, uid, **more)
    here.store.keep = settings.keep
    return _train(here, STRATEGY, _Request(model, examples, examples, settings))


def evaluations(folder: Path) -> list[tuple[int, float, bool]]:
    lines = jsonl(folder / "evaluator" / "evaluations.jsonl")
    return [(line["step"], line["metrics"]["far"], line["final"]) for line in lines]


# The metric of an epoch is the mean of its two steps, from before they are taken: least for steps 7 and 8.
# A checkpoint is scored as it is: the best one is that of step 6.
@pytest.mark.parametrize(
    ("monitor", "ended", "best", "value"), [("far", 12, 8, 0.5), ("val_far", 10, 6, 0.0)]
)
def test_the_best_checkpoint_is_what_a_training_leaves(
    monitor: str, ended: int, best: int, value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = ProgressFile(None)
    result = train(tmp_path, recipe(monitor, export=True), progress=progress)

    assert (result.step, result.model_step) == (ended, best)
    assert float(result.model.weights[0].numpy()) == best
    exported = keras.models.load_model(
        tmp_path / "model" / "model.keras", custom_objects={"Steps": Steps}, compile=False
    )
    assert float(exported.weights[0].numpy()) == best
    assert evaluations(tmp_path)[-1] == (best, abs(best - GOAL), True)
    assert CheckpointStore(tmp_path / "checkpoints").steps() == [best, ended]
    unit = "epochs" if monitor == "far" else "checkpoints"
    why = f"{monitor} has not improved for 2 {unit}; best {value:.4g} at step {best}"
    assert progress.last.stopped_early == why
    assert f"trainjob: training stopped early at step {ended} of 40: {why}; " in capsys.readouterr().err
    if monitor == "far":
        assert result.metrics["far"] == value
        with pytest.raises(OutputFinished, match=f"stopped early at step {ended} of 40"):
            train(tmp_path, recipe(monitor), "another")
        more = train(tmp_path, recipe(monitor, steps=STEPS + 1), "another")
        assert (more.step, more.model_step) == (ended + 4, best)


@pytest.mark.parametrize(("monitor", "best", "value"), [("far", 8, 0.5), ("val_far", 6, 1.5)])
def test_one_that_is_cut_off_ends_as_one_that_is_not(
    monitor: str, best: int, value: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = record_writers(monkeypatch)
    settings = recipe(monitor, checkpoint_every=3, keep=2)
    with pytest.raises(Preempted):
        train(tmp_path, settings, stopped_at=7)
    with pytest.raises(Killed):
        train(tmp_path, settings, killed_at=10)
    writers[-1].wait()
    result = train(tmp_path, settings)

    assert (result.step, result.model_step, result.metrics["far"]) == (12, best, value)
    assert float(result.model.weights[0].numpy()) == best


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            recipe("val_fare"),
            "monitor: the model has no metric 'val_fare', only loss, far, val_loss, val_far",
        ),
        (recipe("far", mode="auto"), "monitor: whether a larger far is a better one is not known; set mode"),
    ],
)
def test_what_can_be_known_to_be_wrong_is_refused_at_the_start(
    settings: Recipe, words: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidConfiguration, match=words):
        train(tmp_path, settings)
    assert not (tmp_path / "evaluator").exists()


def test_keras_tells_names_and_directions_of_its_metrics() -> None:
    def build() -> Any:
        net = model()
        metrics = ["accuracy", "mae", keras.metrics.AUC(name="area"), keras.metrics.F1Score(name="by_class")]
        net.compile("sgd", "mse", metrics=metrics)
        return net

    spec = (tf.TensorSpec([4, 3]), tf.TensorSpec([4, 1]))
    built = build_model(STRATEGY, build, spec, 1)
    names = OverAll(STRATEGY, built).names()

    def larger(monitor: str) -> bool:
        asked = Recipe(monitor=monitor, patience=1)
        return build_rule(asked, built, names).larger_is_better

    directions = {name: larger(name) for name in names}
    assert directions == {"loss": False, "accuracy": True, "mae": False, "area": True}
