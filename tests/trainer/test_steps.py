from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from support.trainer.steps import Steps, build_model
from trainjob_trainer.distribution.collective import weights_hash
from trainjob_trainer.keras.metrics import OverAll, scalars
from trainjob_trainer.keras.model import variable_groups
from trainjob_trainer.keras.steps import announce_first_step, rewritten_once

BATCH = 4
INPUTS = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
SPEC = (tf.TensorSpec([BATCH, 3], tf.float32), tf.TensorSpec([BATCH, 1], tf.float32))


def examples() -> Any:
    return tf.data.Dataset.from_tensor_slices((INPUTS, INPUTS.sum(axis=1, keepdims=True)))


def regression(with_input: bool = True) -> Any:
    layers = [keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers] if with_input else layers)
    model.compile("adam", "mse", metrics=["mae"])
    return model


def built(build: Callable[[], Any] = regression) -> tuple[Any, Steps]:
    model = build_model(build, SPEC, seed=3)
    return model, Steps(tf.distribute.get_strategy(), model)


def batches() -> Any:
    return iter(examples().shuffle(20, seed=1).batch(BATCH).repeat())


@pytest.mark.parametrize("calls", [(6,), (1, 5), (2, 2, 2)])
def test_steps_are_the_same_however_they_are_called(calls: tuple[int, ...]) -> None:
    model, steps = built()
    iterator = batches()

    for count in calls:
        logs = steps.run(iterator, count)

    expected, other = built()
    expected_logs = other.run(batches(), 6)
    assert weights_hash(variable_groups(model)) == weights_hash(variable_groups(expected))
    assert logs == pytest.approx(expected_logs)
    assert int(model.optimizer.iterations) == 6


def test_metrics_are_those_of_the_epoch() -> None:
    model, steps = built()
    local = steps.run(batches(), 3)
    over_all = OverAll(tf.distribute.get_strategy(), model)

    assert set(local) == {"loss", "mae"}
    assert scalars(over_all.results()) == pytest.approx(local)
    over_all.reset()
    assert scalars(over_all.results()) == pytest.approx({"loss": 0, "mae": 0})


def test_a_model_without_an_input_is_built_from_the_data() -> None:
    model, steps = built(lambda: regression(with_input=False))

    steps.run(batches(), 1)

    assert model.built


def test_a_snapshot_holds_the_random_state_of_dropout() -> None:
    model, _ = built()

    paths = [variable.path for variable in variable_groups(model)["model"]]

    assert any("seed_generator_state" in path for path in paths)


def test_metrics_that_are_no_numbers_do_not_end_the_training() -> None:
    def by_class() -> Any:
        model = regression()
        model.compile("adam", "mse", metrics=[keras.metrics.F1Score(name="f1")])
        return model

    _, steps = built(by_class)

    assert set(steps.run(batches(), 1)) == {"loss"}


@pytest.mark.parametrize(("count", "lines"), [(49, 0), (50, 1)])
def test_a_start_with_many_variables_says_what_it_waits_for(
    count: int, lines: int, capsys: pytest.CaptureFixture[str]
) -> None:
    announce_first_step(SimpleNamespace(trainable_variables=[None] * count))
    words = f"the model is built, with {count} variables to train; its first step is being traced"
    assert capsys.readouterr().err.count(words) == lines


def test_graphs_are_rewritten_once_by_the_users_own_options() -> None:
    def rewriting() -> Any:
        options = context.context().function_call_options
        config = tf.compat.v1.ConfigProto.FromString(options.config_proto_serialized)
        return config.graph_options.rewrite_options

    before = rewriting()
    with rewritten_once():
        now = rewriting()
        assert now.meta_optimizer_iterations == now.ONE
        now.meta_optimizer_iterations = before.meta_optimizer_iterations
        assert now == before
    assert rewriting() == before
