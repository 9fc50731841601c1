"""Each device's loss counts by its share of the global batch's rows, if the parts have unequal sizes.

Keras divides a device's mean loss by the number of devices, and gradients are summed over the devices. That
is the mean over the global batch only if all devices have equally many rows. Otherwise the share comes with
the rows, and Keras's function for that division multiplies by the share: sums and regularizers stay right.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple

import tensorflow as tf


class Part(NamedTuple):
    """The rows of a global batch that one device has, and the weight of their mean loss.

    A share is a float32 scalar; the shares of all devices add up to 1.
    """

    rows: Any
    share: Any


class _Current(threading.local):
    """State of the step that this thread traces or runs; each device has its own thread."""

    read: Callable[[], Any] | None = None
    by_gradients: bool = False
    updates: Iterator[int] = iter(())
    weighed: dict[int, bool] = {}  # noqa: RUF012 - replaced for each step


_current = _Current()


def weigh_losses(losses: ModuleType) -> None:
    """Replace the functions of `keras.src.losses.loss` that scale by the number of devices and undo that."""
    scale, unscale = losses.scale_loss_for_distribution, losses.unscale_loss_for_distribution
    if hasattr(scale, "__wrapped__"):
        return

    @functools.wraps(scale)
    def scale_loss_for_distribution(value: Any) -> Any:
        if _current.read is None:
            return scale(value)
        _current.by_gradients = False
        return value * tf.cast(_current.read(), value.dtype)

    @functools.wraps(unscale)
    def unscale_loss_for_distribution(value: Any) -> Any:
        return unscale(value) if _current.read is None else value / tf.cast(_current.read(), value.dtype)

    losses.scale_loss_for_distribution = scale_loss_for_distribution  # type: ignore[attr-defined]
    losses.unscale_loss_for_distribution = unscale_loss_for_distribution  # type: ignore[attr-defined]


def by_share(model: Any, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a device's training step that takes a `Part` as well as rows without a share."""
    handles: dict[int, Any] = {}
    by_update: dict[int, bool] = {}
    is_own = not _is_keras(model, "train_step")
    averages = is_own or not _is_keras(model, "compute_loss")

    @functools.wraps(step)
    def weighed(data: Any) -> Any:
        if not isinstance(data, Part):
            return step(data)
        read = _kept(data.share, handles) if is_own else lambda: data.share
        with _reading(read, averages, by_update):
            return step(data.rows)

    return weighed


def weighed_gradients(gradients: Sequence[Any]) -> list[Any]:
    """Weigh gradients by the share if the step averages its own loss, without Keras's functions.

    A `tf.function` within the step calls these functions only when it is traced itself. So a later trace of
    the step does what the first one did in this update, the second or third of a step perhaps.
    """
    if _current.read is None:
        return list(gradients)
    update = next(_current.updates)
    weighs = _current.weighed[update] = _current.by_gradients and _current.weighed.get(update, True)
    factor = weight_of_mean()
    if not weighs or factor is None:
        return list(gradients)
    return [None if one is None else _times(one, factor) for one in gradients]


def weight_of_mean() -> Any:
    """Return the weight of this device's mean among those of all devices; None if they count alike.

    The weights of all devices add up to their number.
    """
    if _current.read is None:
        return None
    return _current.read() * tf.distribute.get_strategy().num_replicas_in_sync


def without_share(data: Any) -> Any:
    """Return the rows without their share."""
    return data.rows if isinstance(data, Part) else data


def _is_keras(model: Any, name: str) -> bool:
    return str(getattr(type(model), name).__module__).startswith("keras.")


@contextmanager
def _reading(read: Callable[[], Any], by_gradients: bool, weighed: dict[int, bool]) -> Iterator[None]:
    _current.read, _current.by_gradients = read, by_gradients
    _current.updates, _current.weighed = itertools.count(), weighed
    try:
        yield
    finally:
        _current.read, _current.by_gradients = None, False


def _kept(share: Any, handles: dict[int, Any]) -> Callable[[], Any]:
    """Keep the share outside the trace: a `tf.function` within a user's step outlives the trace.

    A `tf.Variable` would belong to the strategy, and all workers would have to create it together.
    """
    replica = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group) or 0)
    if replica not in handles:
        with tf.init_scope(), tf.device("/CPU:0"):
            name = f"trainjob-share-{id(handles)}-{len(handles)}"
            handles[replica] = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name=name)
    handle = handles[replica]
    with tf.device(handle.device):
        tf.raw_ops.AssignVariableOp(resource=handle, value=share)

    def read() -> Any:
        with tf.device(handle.device):
            return tf.ensure_shape(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32), [])

    return read


def _times(gradient: Any, factor: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_times(gradient.values, factor), gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)
