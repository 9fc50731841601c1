"""XLA compiles the two passes, and nothing else changes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from support.trainer.steps import Steps, build_model

BATCH, STEPS = 4, 7
SPEC = (
    tf.TensorSpec([BATCH, 3], tf.float32),
    {name: tf.TensorSpec([BATCH, 1], tf.float32) for name in ("a", "b")},
    tf.TensorSpec([BATCH, 1], tf.float32),
)


class Unsupported(keras.layers.Layer):
    """XLA knows no strings."""

    def call(self, inputs: Any) -> Any:
        return inputs + tf.strings.to_number(tf.strings.as_string(inputs)) * 0


def model(compiled: bool, *more: keras.layers.Layer) -> keras.Model:
    inputs = keras.Input((3,))
    hidden = keras.layers.Dense(4, kernel_regularizer="l2", activation="tanh")(inputs)
    hidden = keras.layers.BatchNormalization(momentum=0.5)(hidden)
    for layer in more:
        hidden = layer(hidden)
    outputs = {name: keras.layers.Dense(1, name=name)(hidden) for name in ("a", "b")}
    net = keras.Model(inputs, outputs)
    net.compile(
        keras.optimizers.Adam(0.01),
        {"a": "mse", "b": "mae"},
        loss_weights={"a": 1.0, "b": 0.5},
        metrics={"a": ["mae"]},
        weighted_metrics={"b": ["mse"]},
        jit_compile=compiled,
    )
    return net


def batches() -> Any:
    random = np.random.default_rng(0)
    x = random.normal(size=(20, 3)).astype("float32")
    y = {"a": x[:, :1], "b": x[:, 1:2]}
    weights = random.uniform(0.5, 1.5, size=(20, 1)).astype("float32")
    return iter(tf.data.Dataset.from_tensor_slices((x, y, weights)).repeat().batch(BATCH))


def trained(compiled: bool, *more: keras.layers.Layer) -> tuple[Any, dict[str, float]]:
    strategy = tf.distribute.get_strategy()
    net = build_model(lambda: model(compiled, *more), SPEC, seed=3)
    return net, Steps(strategy, net).run(batches(), STEPS)


def test_it_trains_as_the_step_that_is_not_compiled() -> None:
    """With moving averages, regularizers, several outputs, weights and metrics."""
    expected, expected_logs = trained(False)
    found, logs = trained(True)
    assert logs.keys() == expected_logs.keys()
    assert logs == pytest.approx(expected_logs, rel=1e-5)
    for one, other in zip(found.variables, expected.variables, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-6, err_msg=one.path)


def test_random_layers_go_on_from_step_to_step() -> None:
    net, logs = trained(True, keras.layers.Dropout(0.5), keras.layers.Dropout(0.5, seed=7))
    seeds = [one for one in net.variables if "seed_generator_state" in one.path]
    assert [int(np.asarray(seed)[1]) for seed in seeds] == [STEPS, STEPS]
    assert np.isfinite(logs["loss"])


def test_what_xla_can_not_compile_is_left_out_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    expected, _ = trained(False, Unsupported())
    found, _ = trained(True, Unsupported())
    assert (
        capsys.readouterr().err.count("XLA (jit_compile) is left out: Detected unsupported operations") == 1
    )
    for one, other in zip(found.variables, expected.variables, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-6, err_msg=one.path)
