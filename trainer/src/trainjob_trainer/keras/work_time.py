"""How long a device waits for its data in a step, and works by itself until its gradients are computed.

The reduction over all workers follows. It lasts until the slowest worker arrives, so the time of a whole step
is the same on every worker and doesn't show the slow one. The moments are taken within the traced step;
nothing waits for them. A layer that communicates with other workers in the forward pass, such as synchronized
BatchNormalization, waits for them there: that counts as work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class OwnTime:
    """Mean seconds of this process's own part of a step in a call; None if that can't be known.

    `input` is the wait for data; `work` includes that, and ends when the gradients are computed.
    """

    work: float | None = None
    input: float | None = None

    @classmethod
    def of(cls, sums: Any, steps: int) -> OwnTime:
        """Compute it from the sums of `own_seconds` over a call of `steps` steps; wait for the call's end."""
        work, waited = (float(one) / steps for one in sums.numpy())
        return cls(None if work < 0 else work, waited)


def moment_after(tensors: Sequence[Any]) -> Any:
    """Return when these are computed: Unix seconds, a float64 scalar of the traced function."""
    with tf.device("CPU:0"), tf.control_dependencies(list(tensors)):
        return tf.timestamp()


def gradients_moment(gradients: Sequence[Any]) -> Any:
    """Return when a device's gradients are computed, as `moment_after`; None stands for no gradient.

    A GPU's operations count as done when they are queued; only a copy to the host shows that they have ended.
    That is a number of the smallest gradient, after all gradients.
    """
    values = [getattr(one, "values", one) for one in gradients if one is not None]
    if not values:
        return moment_after([])
    smallest = min(values, key=lambda one: one.shape.num_elements() or float("inf"))
    with tf.control_dependencies(values):
        number = tf.reshape(smallest, [-1])[:1]
    with tf.device("CPU:0"):
        return moment_after([tf.identity(number)])


def data_moment(data: Any) -> Any:
    """Return when a step's data are there, for all devices of this process."""
    return moment_after([one for one in tf.nest.flatten(data, expand_composites=True) if one is not None])


def own_seconds(strategy: Any, began: Any, had: Any, ready: Any) -> Any:
    """Return seconds of work, and of the wait for data, of this process's slowest device: a float64 vector.

    `had` is when the step had its data; `ready` is each device's `gradients_moment`, or 0 if that can't be
    known: then the seconds of work are decades below 0. There are few operations, because each costs some
    microseconds.
    """
    every = strategy.experimental_local_results(ready)
    latest = every[0] if len(every) == 1 else tf.reduce_max(tf.stack(every))
    return tf.stack([latest, had]) - began
