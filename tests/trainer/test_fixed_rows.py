"""Tables whose rows are looked up whatever the batch holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from trainjob_trainer.keras.gradients import has_fixed_rows

TABLE = tf.Variable(tf.ones([9, 2]))
Lookup = Callable[[Any], Any]


@pytest.mark.parametrize(
    ("lookup", "is_fixed"),
    [
        (lambda batch: [3, 1, 3], True),  # noqa: ARG005
        (lambda batch: tf.range(tf.shape(batch)[-1]), True),
        (lambda batch: tf.cast(tf.range(4) // 2, tf.int64), True),  # noqa: ARG005 - relative places share rows
        (lambda batch: batch, False),
        (lambda batch: tf.range(4) + tf.reduce_max(batch), False),
        (lambda batch: tf.random.uniform([4], maxval=6, dtype=tf.int32), False),  # noqa: ARG005
    ],
)
def test_rows_are_fixed_where_no_example_says_which(lookup: Lookup, is_fixed: bool) -> None:
    seen = []

    @tf.function(autograph=False)
    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(TABLE, lookup(batch)))
        gradient = tape.gradient(loss, TABLE)
        seen.append(has_fixed_rows(gradient))
        return gradient.values

    step(tf.constant([[1, 2, 3, 4]]))
    assert seen == [is_fixed]


def test_other_gradients_have_none() -> None:
    assert not has_fixed_rows(None)
    assert not has_fixed_rows(tf.ones([2]))
    eager = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([0, 1]))
    assert not has_fixed_rows(eager), "not known"
