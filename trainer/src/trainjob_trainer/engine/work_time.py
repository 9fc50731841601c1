"""How long a replica waits for its data in a step, and works on it by itself: until its gradients are there.

What follows, the reduction over all workers, takes until the slowest one has come, so the time of a whole
step is the same on every worker and names nobody. The moments are taken within the traced step; nothing waits
for them. A layer that meets the other workers in the forward pass, such as synchronized BatchNormalization,
waits for them there: that counts as work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class OwnTime:
    """Seconds that a step of a call took this process itself, on average; None where that can't be known.

    `input` is the wait for its data; `work` includes that, and ends when its gradients are there.
    """

    work: float | None = None
    input: float | None = None

    @classmethod
    def of(cls, sums: Any, steps: int) -> OwnTime:
        """From the sums of `own_seconds` over a call of `steps`; waits for the call's end."""
        work, waited = (float(one) / steps for one in sums.numpy())
        return cls(None if work < 0 else work, waited)


def moment_after(tensors: Sequence[Any]) -> Any:
    """When these have been computed: Unix seconds, a float64 scalar of the traced function."""
    with tf.device("CPU:0"), tf.control_dependencies(list(tensors)):
        return tf.timestamp()


def gradients_moment(gradients: Sequence[Any]) -> Any:
    """When a replica's gradients were there, as `moment_after`; None among them is no gradient."""
    return moment_after(_computed(gradients))


def data_moment(data: Any) -> Any:
    """When a step's data were there; of several devices, those of all."""
    return moment_after([one for one in tf.nest.flatten(data, expand_composites=True) if one is not None])


def own_seconds(strategy: Any, began: Any, had: Any, ready: Any) -> Any:
    """Seconds of work, and of waiting for data, of this process's slowest replica: a float64 vector.

    `had` is when the step had its data; `ready` is each replica's `gradients_moment`, or 0 where that can't
    be known: then the seconds of work are less than 0, by decades. There are few operations, as each costs
    some microseconds.
    """
    every = strategy.experimental_local_results(ready)
    latest = every[0] if len(every) == 1 else tf.reduce_max(tf.stack(every))
    return tf.stack([latest, had]) - began


def _computed(gradients: Sequence[Any]) -> list[Any]:
    """Values to wait for: all of them, and a number of the smallest.

    A GPU's operations count as done when they are queued. The number has to come to the host, after them.
    """
    values = [getattr(one, "values", one) for one in gradients if one is not None]
    if not values:
        return []
    smallest = min(values, key=lambda one: one.shape.num_elements() or float("inf"))
    with tf.control_dependencies(values):
        number = tf.reshape(smallest, [-1])[:1]
    with tf.device("CPU:0"):
        return [tf.identity(number)]
