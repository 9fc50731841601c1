"""Metrics over all replicas; that several agree is shown by the trainings of several workers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from trainjob_trainer.keras.metrics import MetricState, OverAll, has_own_reset, read_over_all

STRATEGY = tf.distribute.get_strategy()


class Calls(keras.metrics.Metric):
    """Counts, on each replica, how often it has been called; the figure is the replicas' mean."""

    def __init__(self) -> None:
        super().__init__(name="calls")
        self.calls = self.add_variable((), "zeros", aggregation="mean")

    def update_state(self, *_: Any, **__: Any) -> None:
        self.calls.assign_add(1.0)

    def result(self) -> Any:
        return self.calls.value


def values(model: Any) -> list[list[float]]:
    return [variable.numpy().ravel().tolist() for metric in model.metrics for variable in metric.variables]


@pytest.fixture
def model() -> Any:
    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, activation="softmax")])
    metrics = [keras.metrics.F1Score(), keras.metrics.AUC(), keras.metrics.MeanIoU(2), Calls()]
    made.compile("sgd", "mse", metrics=metrics)
    random = np.random.default_rng(0)
    labels = np.eye(2, dtype="float32")[random.integers(0, 2, 16)]
    made.evaluate(random.normal(size=(16, 3)).astype("float32"), labels, batch_size=4, verbose=0)
    return made


def test_they_are_keras_own(model: Any) -> None:
    expected = {name: np.asarray(value) for name, value in model.get_metrics_result().items()}
    assert expected["calls"] == 4
    results = OverAll(STRATEGY, model).results()
    assert set(results) == set(expected)
    for name, value in results.items():
        assert np.asarray(value) == pytest.approx(expected[name])


def test_looking_at_values_changes_none(model: Any) -> None:
    state, before = MetricState(model), values(model)
    elsewhere = state.results([flat * 2 for flat in state.reduced()])
    assert float(elsewhere["calls"]) == 8
    assert values(model) == before


def test_what_a_step_reads_of_metrics_is_over_all_and_changes_none(model: Any) -> None:
    before, expected = values(model), model.get_metrics_result()
    with read_over_all(model), read_over_all(model):  # by two replicas of a process
        results = model.get_metrics_result()
    for name, value in results.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-6)
    assert values(model) == before
    assert not any("result" in vars(metric) for metric in model.metrics)


def test_a_reset_is_keras_own(model: Any) -> None:
    assert not has_own_reset(model)
    OverAll(STRATEGY, model).reset()
    after = values(model)
    model.reset_metrics()
    assert after == values(model)


class OwnReset(Calls):
    """Its Python is no part of a trace."""

    def reset_state(self) -> None:
        super().reset_state()


def test_a_reset_of_the_users_own_is_known() -> None:
    made = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    made.compile("sgd", "mse", metrics=[OwnReset()])
    made.evaluate(np.zeros((4, 3), "float32"), np.zeros((4, 2), "float32"), verbose=0)
    assert has_own_reset(made)
