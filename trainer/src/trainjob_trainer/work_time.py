"""How long a replica works on a step by itself: until its gradients are there.

What follows, the reduction over all workers, takes until the slowest one has come, so the time of a whole
step is the same on every worker and names nobody. The moments are taken within the traced step; nothing waits
for them. A layer that meets the other workers in the forward pass, such as synchronized BatchNormalization,
waits for them there: that counts as work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


def moment_after(tensors: Sequence[Any]) -> Any:
    """When these have been computed: Unix seconds, a float64 scalar of the traced function."""
    with tf.device("CPU:0"), tf.control_dependencies(list(tensors)):
        return tf.timestamp()


def with_gradients_moment(optimizer: Any, step: Callable[[], Any]) -> tuple[Any, Any]:
    """Trace one step of a replica, and note when it hands its gradients to the optimizer.

    Args:
        optimizer: Keras's; the step calls its `apply` or `apply_gradients`.
        step: such as a call of the model's `train_step`.

    Returns:
        What the step returns, and the moment as of `moment_after`; 0 where it can't be known: the step uses
        another optimizer, or this one in a branch or a function of its own.
    """
    unknown = tf.constant(0.0, tf.float64)
    # Another replica of this process is being traced meanwhile, up to the point where all reduce: it notes
    # these gradients too.
    if optimizer is None or "apply" in vars(optimizer):
        return step(), unknown
    apply, moments = optimizer.apply, [unknown]

    def noting(grads: Any, *args: Any, **kwargs: Any) -> Any:
        gradients = list(grads)
        moments.append(moment_after(_computed(gradients)))
        return apply(gradients, *args, **kwargs)

    optimizer.apply = noting
    try:
        returned = step()
    finally:
        del optimizer.apply
    return returned, tf.reduce_max(tf.stack([one for one in moments if one.graph is unknown.graph]))


def own_seconds(strategy: Any, began: Any, ready: Any) -> Any:
    """What this process's slowest replica took.

    Args:
        strategy: that ran the replicas.
        began: when the step began.
        ready: what `with_gradients_moment` told of each replica.

    Returns:
        Seconds, a float64 scalar; NaN where they can't be known.
    """
    latest = tf.reduce_max(tf.stack(strategy.experimental_local_results(ready)))
    return tf.where(latest > 0, latest - began, tf.constant(float("nan"), tf.float64))


def seconds_a_step(worked: Any, steps: int) -> float | None:
    """Return the mean of `own_seconds` over a call of `steps`, from their sum; None if not known."""
    seconds = float(worked) / steps
    return None if math.isnan(seconds) else seconds


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
