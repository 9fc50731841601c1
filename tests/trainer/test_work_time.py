"""What a step takes a replica itself."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainjob_trainer.distribution.collective import weights_hash
from trainjob_trainer.keras.gradients import GradientPath
from trainjob_trainer.keras.model import variable_groups
from trainjob_trainer.keras.not_finite import OnNan
from trainjob_trainer.keras.steps import ManySteps, OwnTime, data_moment, own_seconds

INPUTS = tf.constant(np.random.default_rng(0).normal(size=(4, 3)), tf.float32)


def build(kind: type[keras.Model] = keras.Model) -> Any:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,))
    model = kind(inputs, keras.layers.Dense(1)(inputs))
    model.compile("adam", "mse", jit_compile=True)  # the loop of many steps is not compiled
    model.optimizer.build(model.trainable_variables)
    return model


def examples() -> Any:
    return iter(tf.data.Dataset.from_tensors((INPUTS, INPUTS[:, :1])).repeat())


def run(model: Any, steps: int = 3) -> float:
    strategy = tf.distribute.get_strategy()
    calls = ManySteps(strategy, model.train_step, lambda: 0, GradientPath.of(model, strategy, OnNan.STOP))
    calls.take(examples(), steps)
    own = calls.own_time
    assert own.input is not None
    assert own.input >= 0
    assert own.work is None or own.input <= own.work
    return math.nan if own.work is None else own.work * steps


def test_it_is_a_part_of_the_time_and_changes_nothing() -> None:
    model, same = build(), build()
    began = time.time()
    worked = run(model)
    assert 0 < worked < time.time() - began
    assert "apply" not in vars(model.optimizer)

    step = tf.function(lambda batches: same.train_step(next(batches)))
    batches = examples()
    for _ in range(3):
        step(batches)
    assert weights_hash(variable_groups(model)) == weights_hash(variable_groups(same))


class WithoutOptimizer(keras.Model):
    def train_step(self, data: Any) -> dict[str, Any]:
        return {"loss": tf.reduce_mean(self(data[0]))}


class InABranch(keras.Model):
    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self(data[0]) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)

        def apply() -> Any:
            self.optimizer.apply(gradients, self.trainable_variables)
            return loss

        return {"loss": tf.cond(loss >= 0, apply, lambda: loss)}


class WithTwo(InABranch):
    def train_step(self, data: Any) -> dict[str, Any]:
        keras.Model.train_step(self, data)
        return keras.Model.train_step(self, data)


@pytest.mark.parametrize(("kind", "known"), [(WithoutOptimizer, False), (InABranch, False), (WithTwo, True)])
def test_a_step_of_the_users_own(kind: type[keras.Model], known: bool) -> None:
    model = build(kind)
    worked = run(model)
    assert math.isnan(worked) is not known
    assert "apply" not in vars(model.optimizer)


def test_a_step_without_any_optimizer_is_taken_as_it_is() -> None:
    calls = ManySteps(tf.distribute.get_strategy(), lambda _: tf.constant(7), lambda: tf.constant(8))
    assert int(calls.take(examples(), 3)) == 8
    assert calls.own_time.work is None


def test_an_error_in_the_step_leaves_the_optimizer_as_it_was() -> None:
    model = build()
    path = GradientPath.of(model, tf.distribute.get_strategy(), OnNan.STOP)
    with pytest.raises(ZeroDivisionError):
        tf.function(lambda: path.trace(lambda: 1 // 0), autograph=False)()
    assert not {"apply", "scale_loss"} & set(vars(model.optimizer))


@pytest.mark.parametrize(
    ("ready", "work"),
    [([12.5], 2.5), ([12.5, 13.0], 3.0), ([0.0, 12.5], 2.5), ([0.0, 0.0], None), ([0.0], None)],
)
def test_of_several_devices_the_slowest_counts(ready: list[float], work: float | None) -> None:
    strategy = SimpleNamespace(experimental_local_results=tuple)
    moments = [tf.constant(one, tf.float64) for one in ready]
    sums = own_seconds(strategy, tf.constant(10.0, tf.float64), tf.constant(10.5, tf.float64), moments)
    assert OwnTime.of(sums * 4, 4) == OwnTime(work, 0.5)


SLOW = 0.02


def slow_examples() -> Any:
    def number() -> np.ndarray[Any, Any]:
        until = time.time() + SLOW  # what a batch takes, at least, by the clock that TensorFlow reads too
        while time.time() <= until:
            time.sleep(0.001)
        return np.float32(1.0)

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # the next batch would begin within the step
    ones = tf.data.Dataset.counter().map(lambda _: tf.numpy_function(number, [], tf.float32))
    ones = ones.with_options(options)
    return iter(ones.map(lambda one: (INPUTS * tf.ensure_shape(one, []), INPUTS[:, :1])))


def test_what_a_slow_pipeline_takes_is_waiting_for_input() -> None:
    model, strategy = build(), tf.distribute.get_strategy()
    calls = ManySteps(strategy, model.train_step, lambda: 0, GradientPath.of(model, strategy, OnNan.STOP))
    calls.take(slow_examples(), 3)
    assert calls.own_time.input is not None
    assert calls.own_time.work is not None
    assert SLOW <= calls.own_time.input <= calls.own_time.work


def test_parts_of_the_data_that_are_absent_or_composite() -> None:
    data = (INPUTS, None, tf.sparse.from_dense(INPUTS))
    assert float(data_moment(data)) > 0
