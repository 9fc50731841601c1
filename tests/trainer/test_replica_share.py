"""Parts of unequal size: what each replica's loss and gradients count for."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf

from trainjob_trainer.engine.replica_share import (
    Part,
    by_share,
    weigh_losses,
    weighed_gradients,
    without_share,
)

ROWS = tf.constant([2.0, 4.0])


@pytest.fixture
def losses() -> Any:
    """Keras's functions of the same names, for ten replicas."""
    module: Any = ModuleType("losses")
    module.scale_loss_for_distribution = lambda value: value / 10
    module.unscale_loss_for_distribution = lambda value: value * 10
    weigh_losses(module)
    weigh_losses(module)
    return module


class OwnStep(keras.Model):
    def train_step(self, data: Any) -> Any:
        raise NotImplementedError


class OwnLoss(keras.Model):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def through_keras(losses: Any) -> Any:
    def step(data: Any) -> Any:
        scaled = losses.scale_loss_for_distribution(tf.reduce_mean(data))
        tracked = losses.unscale_loss_for_distribution(scaled)
        return [float(one) for one in (scaled, tracked, *weighed_gradients([scaled]))]

    return step


@pytest.mark.parametrize("kind", [keras.Model, OwnStep, OwnLoss])
def test_a_loss_of_keras_counts_by_its_share(losses: Any, kind: type[keras.Model]) -> None:
    step = by_share(kind(), through_keras(losses))
    assert step(Part(ROWS, tf.constant(0.25))) == [0.75, 3.0, 0.75]
    assert step(ROWS) == pytest.approx([0.3, 3.0, 0.3])


@pytest.mark.parametrize(("kind", "factor"), [(keras.Model, 1.0), (OwnStep, 0.25), (OwnLoss, 0.25)])
def test_gradients_of_a_loss_that_averages_by_itself_count_by_its_share(
    kind: type[keras.Model], factor: float
) -> None:
    slices = tf.IndexedSlices(tf.constant([[8.0]]), tf.constant([1]), tf.constant([3, 1]))
    step = by_share(kind(), lambda data: weighed_gradients([data, None, slices]))
    dense, none, sparse = step(Part(ROWS, tf.constant(0.25)))
    assert dense.numpy().tolist() == [2.0 * factor, 4.0 * factor]
    assert none is None
    assert sparse.values.numpy().tolist() == [[8.0 * factor]]
    assert weighed_gradients([ROWS])[0] is ROWS


def test_a_traced_step_of_the_users_reads_the_share_of_each_call(losses: Any) -> None:
    """It is traced once, and called from two other traces."""
    own = tf.function(lambda data: losses.scale_loss_for_distribution(tf.reduce_mean(data)))
    step = by_share(OwnStep(), own)
    shares = (0.5, 0.25)
    seen = [tf.function(step)(Part(ROWS, tf.constant(share))) for share in shares]
    assert [float(one) for one in seen] == [1.5, 0.75]


@pytest.mark.parametrize("data", [SimpleNamespace(), (1, 2)])
def test_the_rows_alone(data: Any) -> None:
    assert without_share(data) is data
    assert without_share(Part(data, 0.5)) is data
