"""An optimizer's update that is traced once a shape gives the very numbers of Keras's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainjob_trainer.keras.gradients import GradientPath, find_slots, shared_update
from trainjob_trainer.keras.steps import ManySteps

optimizers = keras.optimizers
EQUAL = {
    "sgd": lambda: optimizers.SGD(0.1),
    "nesterov": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "adam": lambda: optimizers.Adam(0.01, amsgrad=True),
    "adamw": lambda: optimizers.AdamW(0.01, weight_decay=0.1, use_ema=True),
    "adadelta": lambda: optimizers.Adadelta(1.0),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "adamax": lambda: optimizers.Adamax(0.01),
    "nadam": lambda: optimizers.Nadam(0.01),
    "ftrl": lambda: optimizers.Ftrl(0.1),
    "lion": lambda: optimizers.Lion(0.01),
    "lamb": lambda: optimizers.Lamb(0.01),
    "schedule": lambda: optimizers.Adam(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "clipped": lambda: optimizers.Adam(0.01, global_clipnorm=0.1),
    "accumulated": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
}
AT_NIGHT = ("adadelta", "adagrad", "adamax", "nadam", "ftrl", "lion", "lamb")
"""Another Keras may break them, and not a change here that breaks none of the others."""
LEFT_ALONE = {
    "muon": lambda: optimizers.Muon(0.01),
    "adafactor": lambda: optimizers.Adafactor(0.01),
    "own": lambda: type("Own", (optimizers.SGD,), {})(0.1),
}


def build(optimizer: Any) -> Any:
    keras.utils.set_random_seed(3)
    hidden = [keras.layers.Dense(4, activation="tanh") for _ in range(3)]
    model = keras.Sequential([keras.Input((4,)), *hidden, keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    return model


def train(model: Any, path: GradientPath) -> list[Any]:
    """Take five steps; return all variables."""
    inputs = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    data = tf.data.Dataset.from_tensors((inputs, inputs.sum(axis=1, keepdims=True))).repeat()
    steps = ManySteps(tf.distribute.get_strategy(), model.train_step, dict, path)
    steps.take(iter(data), 5)
    return [one.numpy() for one in [*model.variables, *model.optimizer.variables]]


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[pytest.mark.nightly] if one in AT_NIGHT else []) for one in EQUAL]
)
def test_the_numbers_are_those_of_kerass_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(EQUAL[name]())
    calls: list[Any] = []
    count_updates(monkeypatch, model.optimizer, calls)
    found = train(model, GradientPath(tf.distribute.get_strategy(), [model.optimizer]))
    assert len(calls) < len(model.trainable_variables), "one for each of the four shapes"
    expected = train(build(EQUAL[name]()), GradientPath(tf.distribute.get_strategy()))
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def count_updates(monkeypatch: pytest.MonkeyPatch, optimizer: Any, calls: list[Any]) -> None:
    update: Callable[..., None] = type(optimizer).update_step

    def counting(self: Any, gradient: Any, variable: Any, learning_rate: Any) -> None:
        calls.append(variable)
        update(self, gradient, variable, learning_rate)

    monkeypatch.setattr(type(optimizer), "update_step", counting)


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_an_update_that_may_depend_on_more_is_kerass_own(name: str) -> None:
    optimizer = LEFT_ALONE[name]()
    build(optimizer)
    assert shared_update(optimizer, train, len) is train


def test_slots_are_the_lists_with_a_variable_for_each_that_is_trained() -> None:
    optimizer = optimizers.Adam(0.01)
    build(optimizer)
    assert find_slots(optimizer) == ["_momentums", "_velocities"]
