"""A training that is cut off anywhere ends as one that is not: one process, each start with a fresh model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from support.trainer import alone
from support.trainer.alone import Killed, record_writers
from support.trainer.checkpoints import final_variables, largest_difference
from trainjob_trainer import Preempted, Result
from trainjob_trainer.checkpoint.store import CheckpointStore

EPOCHS, EPOCH_STEPS, BATCH, EVERY = 4, 8, 4, 5
EXAMPLES = EPOCH_STEPS * BATCH - 2  # the last batch of an epoch is smaller
INPUTS = np.random.default_rng(0).normal(size=(EXAMPLES, 3)).astype("float32")


class Noisy(keras.layers.Layer):
    """Random numbers without a seed of their own."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        return inputs + keras.random.normal(keras.ops.shape(inputs), stddev=0.1) if training else inputs


def model() -> Any:
    layers = keras.layers
    net = keras.Sequential(
        [
            keras.Input((3,)),
            Noisy(),
            layers.Dense(4),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(1),
        ]
    )
    net.compile(
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, 40)), "mse", metrics=["mae"]
    )
    return net


class TwoOptimizers(keras.Model):
    """Trains its two halves in turn, each with an optimizer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = [keras.layers.Dense(4), keras.layers.Dense(1)]
        self.second_optimizer = keras.optimizers.Adam(0.02)

    def build(self, shape: Any) -> None:
        self.halves[0].build(shape)
        self.halves[1].build((None, 4))
        self.second_optimizer.build(self.halves[1].trainable_variables)
        super().build(shape)

    def call(self, inputs: Any) -> Any:
        return self.halves[1](self.halves[0](inputs))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = self.compute_loss(x, y, self(x))
        for half, optimizer in zip(self.halves, [self.optimizer, self.second_optimizer], strict=True):
            variables = half.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        self._loss_tracker.update_state(loss)
        return self.get_metrics_result()


def two_optimizers() -> Any:
    net = TwoOptimizers()
    net.compile("adam", "mse")
    net.build((None, 3))
    return net


def accumulating() -> Any:
    """Cut off between two updates, and between two changes of the loss's scale."""
    net = model()
    inner = keras.optimizers.Adam(0.01, gradient_accumulation_steps=4, clipnorm=0.5)
    net.compile(keras.optimizers.LossScaleOptimizer(inner, dynamic_growth_steps=3), "mse", metrics=["mae"])
    return net


def examples() -> Any:
    return tf.data.Dataset.from_tensor_slices((INPUTS, INPUTS.sum(axis=1, keepdims=True)))


def shuffled_by_its_own() -> Any:
    return examples().shuffle(EXAMPLES, seed=3)


def shuffled_without_a_seed() -> Any:
    return examples().shuffle(EXAMPLES)


def endless() -> Any:
    return shuffled_by_its_own().repeat()


def batches() -> Any:
    return shuffled_by_its_own().batch(BATCH)


def train(folder: Path, data: Callable[..., Any], build: Callable[[], Any] = model, **words: Any) -> Result:
    keras.utils.set_random_seed(42)
    steps = EPOCH_STEPS if data is endless else None
    settings = {"epochs": EPOCHS, "steps_per_epoch": steps, "global_batch": BATCH, "checkpoint_every": EVERY}
    return alone.train(folder, build, data, examples, **{**settings, **words})


@pytest.mark.parametrize(
    ("data", "build", "shuffle"),
    [
        (examples, model, True),
        pytest.param(shuffled_by_its_own, model, False, marks=pytest.mark.nightly),
        pytest.param(shuffled_without_a_seed, model, False, marks=pytest.mark.nightly),
        pytest.param(endless, model, False, marks=pytest.mark.nightly),
        pytest.param(batches, model, True, marks=pytest.mark.nightly),
        (examples, two_optimizers, True),
        pytest.param(examples, accumulating, True, marks=pytest.mark.nightly),
    ],
    ids=["ours", "theirs", "theirs without a seed", "endless", "batches", "two optimizers", "accumulating"],
)
def test_a_run_that_is_cut_off_ends_as_one_that_is_not(
    data: Callable[..., Any],
    build: Callable[[], Any],
    shuffle: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writers = record_writers(monkeypatch)
    whole = train(tmp_path / "whole", data, build, shuffle=shuffle)

    with pytest.raises(Killed):
        train(tmp_path / "cut", data, build, killed_at=9, shuffle=shuffle)
    writers[-1].settle()
    with pytest.raises(Preempted, match="saved step"):
        train(tmp_path / "cut", data, build, stopped_at=17, shuffle=shuffle)
    resumed = train(tmp_path / "cut", data, build, shuffle=shuffle)

    assert largest_difference(tmp_path / "whole", tmp_path / "cut") < 1e-6
    assert resumed.metrics == pytest.approx(whole.metrics, rel=1e-6)


def test_one_that_has_ended_is_restored_where_its_script_has_not(tmp_path: Path) -> None:
    whole = train(tmp_path, examples)
    CheckpointStore(tmp_path / "checkpoints").clear_final()

    again = train(tmp_path, examples)
    assert (again.step, again.metrics) == (whole.step, whole.metrics)
    held = {name.partition("/")[0] for name in final_variables(tmp_path)}
    assert held == {"model", "optimizer", "random", "fit"}
