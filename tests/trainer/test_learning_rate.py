"""A larger batch takes a larger rate, approached step by step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from support.trainer.alone import model, train
from trainjob_trainer import InvalidConfiguration, Recipe
from trainjob_trainer.engine.model_state import scale_learning_rate


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


SCHEDULES = {
    "ExponentialDecay": (0.1, 2, 0.5),
    "PiecewiseConstantDecay": ([1], [0.1, 0.01]),
    "PolynomialDecay": (0.1, 3, 0.05),
    "InverseTimeDecay": (0.1, 2, 0.5),
    "CosineDecay": (0.02, 4, 0.1, "CosineDecay", 0.1, 2),
    "CosineDecayRestarts": (0.1, 3),
}


@pytest.mark.parametrize("warmup", [0, 1, 3])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_goes_on_as_without(name: str, warmup: int) -> None:
    plain, scaled = (compiled(getattr(keras.optimizers.schedules, name)(*SCHEDULES[name])) for _ in "12")
    scale_learning_rate(scaled, Recipe(epochs=1, global_batch=64, base_batch=32, warmup_steps=warmup))
    shares = [2 * min(1, (step + 1) / max(1, warmup)) for step in range(5)]
    np.testing.assert_allclose(rates(scaled, 5), np.multiply(rates(plain, 5), shares), rtol=1e-5)


class Halved(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of the user's own."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, step: Any) -> Any:
        return self.rate / (1.0 + tf.cast(step, tf.float32))

    def get_config(self) -> dict[str, Any]:
        return {"rate": self.rate}


def test_so_does_one_of_the_users_own() -> None:
    net = compiled(Halved(0.1))
    scale_learning_rate(net, Recipe(epochs=1, global_batch=64, base_batch=32, warmup_steps=2))
    np.testing.assert_allclose(rates(net, 3), [0.1, 0.1, 0.2 / 3], rtol=1e-5)


def test_a_function_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="learning rate is a function; give a number"):
        scale_learning_rate(compiled(lambda: 0.1), Recipe(epochs=1, global_batch=2, base_batch=1))


READ = """
import sys, keras, numpy as np
assert "trainjob_trainer" not in sys.modules
for file in sys.argv[1:]:
    optimizer = keras.models.load_model(file).optimizer
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)
    moments = float(sum(np.abs(one.numpy()).sum() for one in optimizer.variables[-2:]))
    print(int(optimizer.iterations), float(optimizer.learning_rate), moments)
"""


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras, with NumPy 2
def test_a_model_in_a_file_has_its_optimizer_without_this_library(tmp_path: Path) -> None:
    schedules, expected, files = keras.optimizers.schedules, [], []
    for number, (optimizer, settings) in enumerate(
        (kind, settings)
        for kind in (
            lambda: keras.optimizers.Adam(0.1),
            lambda: keras.optimizers.Adam(schedules.ExponentialDecay(0.1, 2, 0.5)),
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1)),
        )
        for settings in ({"base_batch": 32}, {"warmup_steps": 3}, {"base_batch": 32, "warmup_steps": 3})
    ):
        net = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        net.compile(optimizer(), "mse")
        scale_learning_rate(net, Recipe(epochs=1, global_batch=64, **settings))
        net.fit(np.ones((8, 1)), np.zeros((8, 1)), batch_size=2, verbose=0)
        inner = getattr(net.optimizer, "inner_optimizer", net.optimizer)
        moments = float(sum(np.abs(one.numpy()).sum() for one in inner.variables[-2:]))
        expected.append((int(inner.iterations), float(inner.learning_rate), moments))
        files.append(str(tmp_path / f"{number}.keras"))
        net.save(files[-1])
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    read = subprocess.run(
        [sys.executable, "-c", READ, *files], env=env, capture_output=True, text=True, check=True
    )
    found = [tuple(map(float, line.split())) for line in read.stdout.splitlines()]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert all(moments > 0 for *_, moments in found)


def test_the_model_that_is_left_goes_on_as_it_was_trained(tmp_path: Path) -> None:
    trained = train(tmp_path, steps=3, base_batch=2, warmup_steps=2).model
    left = keras.models.load_model(tmp_path / "model" / "model.keras")
    assert float(left.optimizer.learning_rate) == float(trained.optimizer.learning_rate)
    assert float(left.optimizer.learning_rate) != float(model().optimizer.learning_rate)
    assert int(left.optimizer.iterations) == 3
    np.testing.assert_array_equal(left.get_weights()[0], trained.get_weights()[0])
