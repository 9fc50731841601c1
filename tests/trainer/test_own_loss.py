"""What the loss of a user's own step is, by its graph; forms show that it trains as in one process."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from trainjob_trainer.engine.own_loss import Kind, explain, kind_of, scales_by_itself

REPLICAS = 4


def mean(rows: Any) -> Any:
    return tf.reduce_mean(tf.square(rows))


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (lambda rows, _: mean(rows), Kind.MEAN),
        (lambda rows, _: keras.ops.mean(rows) + keras.ops.relu(1.0 - mean(rows)), Kind.MEAN),
        (lambda rows, _: 0.5 * mean(rows) + 3.0 * mean(rows), Kind.MEAN),
        (lambda rows, _: tf.cast(tf.maximum(mean(rows), 0.1), tf.float64), Kind.MEAN),
        (lambda rows, _: mean(tf.reduce_sum(rows, axis=1)), Kind.MEAN),
        (lambda _, share: share, Kind.SHARE),
        (lambda _, share: 2.0 * tf.identity(share) + share, Kind.SHARE),
        (lambda _, share: keras.ops.sum([share, share]), Kind.SHARE),
        (lambda rows, share: mean(rows) + share, Kind.UNKNOWN),
        (lambda rows, _: tf.reduce_sum(rows), Kind.UNKNOWN),
        (lambda rows, _: tf.reduce_sum(rows) / 64.0, Kind.UNKNOWN),
        (lambda rows, _: mean(rows) / REPLICAS, Kind.UNKNOWN),
        (lambda rows, _: tf.reduce_mean(rows / REPLICAS), Kind.UNKNOWN),
        (lambda _, share: share * REPLICAS, Kind.UNKNOWN),
        (lambda _, share: tf.square(share), Kind.UNKNOWN),
        (lambda rows, _: mean(rows) * mean(rows), Kind.UNKNOWN),
        (lambda _, __: tf.constant(1.0) + 2.0, Kind.CONSTANT),
    ],
)
def test_a_loss_is_known_by_its_graph(loss: Callable[[Any, Any], Any], kind: Kind) -> None:
    with tf.Graph().as_default():
        rows = tf.compat.v1.placeholder(tf.float32, (None, 3))
        share = tf.reduce_sum(rows) / 7.0
        assert kind_of(loss(rows, share), {share.name}, REPLICAS) is kind


def averages(strategy: Any, loss: Any) -> Any:
    return loss / strategy.num_replicas_in_sync


def averages_within(strategy: Any, loss: Any) -> Any:
    def scaled() -> Any:
        return loss / strategy.num_replicas_in_sync

    return scaled()


@pytest.mark.parametrize(("step", "expected"), [(averages, True), (averages_within, True), (mean, False)])
def test_a_step_for_several_replicas_names_their_number(step: Any, expected: bool) -> None:
    assert scales_by_itself(step.__code__) is expected


def test_a_line_says_what_is_done_with_gradients() -> None:
    assert explain("Own.train_step", Kind.SHARE, 2) is None
    assert "Own.train_step averages its own loss" in str(explain("Own.train_step", Kind.MEAN, 2))
    assert "divide the loss by strategy.num_replicas_in_sync" in str(
        explain("Own.train_step", Kind.UNKNOWN, 2)
    )
