"""A larger batch takes a larger rate, approached step by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from support.trainer.alone import model, train
from trainjob_trainer import InvalidConfiguration, Recipe
from trainjob_trainer.engine.model_state import ScaledRate, scale_learning_rate


def compiled(rate: Any) -> Any:
    net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    net.compile(keras.optimizers.SGD(rate), "mse")
    return net


def rates(net: Any, steps: int) -> list[float]:
    """The rate of each step, by what it does to a weight whose gradient is -1."""
    net.optimizer.build(net.trainable_variables)
    (weight,) = net.trainable_variables
    values = [float(weight.numpy()[0, 0])]
    for _ in range(steps):
        net.optimizer.apply([-tf.ones_like(weight)])
        values.append(float(weight.numpy()[0, 0]))
    return np.diff(values).tolist()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.1, 0.1, 0.1]),
        ({"base_batch": 64}, [0.1, 0.1, 0.1]),
        ({"base_batch": 16}, [0.4, 0.4, 0.4]),
        ({"base_batch": 128, "warmup_steps": 2}, [0.025, 0.05, 0.05]),
        ({"warmup_steps": 4}, [0.025, 0.05, 0.075]),
    ],
)
def test_a_rate_is_scaled_and_approached(settings: dict[str, int], expected: list[float]) -> None:
    net = compiled(0.1)
    scale_learning_rate(net, Recipe(epochs=1, global_batch=64, **settings))
    np.testing.assert_allclose(rates(net, 3), expected, rtol=1e-5)


def test_a_schedule_goes_on_as_without() -> None:
    net = compiled(keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.1, 0.01]))
    scale_learning_rate(net, Recipe(epochs=1, global_batch=64, base_batch=32))
    np.testing.assert_allclose(rates(net, 3), [0.2, 0.2, 0.02], rtol=1e-5)


def test_a_function_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="learning rate is a function; give a number"):
        scale_learning_rate(compiled(lambda: 0.1), Recipe(epochs=1, global_batch=2, base_batch=1))


def test_keras_writes_and_reads_it() -> None:
    rate = ScaledRate(0.5, 2.0, 4)
    again = ScaledRate.from_config(json.loads(json.dumps(rate.get_config())))
    assert float(again(1)) == float(rate(1)) == 0.5


def test_the_model_that_is_left_has_the_optimizer_of_the_script(tmp_path: Path) -> None:
    trained = train(tmp_path, steps=3, base_batch=2, warmup_steps=2).model
    left = keras.models.load_model(tmp_path / "model" / "model.keras")
    assert float(left.optimizer.learning_rate.numpy()) == float(model().optimizer.learning_rate.numpy())
    np.testing.assert_array_equal(left.get_weights()[0], trained.get_weights()[0])
