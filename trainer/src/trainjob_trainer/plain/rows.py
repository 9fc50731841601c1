"""Batched data sets by their rows: trimmed, joined, and cut into parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def has_rows(dataset: Any) -> bool:
    """Whether the elements are batches whose rows can be told apart."""
    return any(_is_batched(spec) for spec in tf.nest.flatten(dataset.element_spec))


def static_batch_size(dataset: Any) -> int | None:
    """Rows of a full batch, or None where the data set does not say."""
    for spec in tf.nest.flatten(dataset.element_spec):
        if _is_batched(spec) and spec.shape[0] is not None:
            return int(spec.shape[0])
    try:
        from tensorflow.python.data.experimental.ops import distribute  # noqa: PLC0415 - private: may be gone

        size = int(distribute.compute_batch_size(dataset))
    except Exception:  # noqa: BLE001 - it only serves messages and figures
        return None
    return size if size > 0 else None


def trim(dataset: Any, multiple: int) -> Any:
    """Cut each batch to a multiple of rows. It must have one, as after `fill_rest`."""
    if _full_batches_of(dataset, multiple):
        return dataset

    def cut(batch: Any) -> Any:
        count = _count(batch)
        return _sliced(batch, tf.zeros_like(count), count - count % multiple)

    return _mapped(dataset, cut)


def fill_rest(dataset: Any, least: int, *, repeat: bool) -> Any:
    """Bring a last batch of fewer than `least` rows up to that number, with rows of the batch before it.

    The number of batches stays. Only the last batch may be smaller than the others.

    Args:
        dataset: batches of dense tensors; others are left alone.
        least: rows that a batch needs.
        repeat: whether those rows stay in the batch before as well, or move.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    dense = all(isinstance(spec, tf.TensorSpec) and _is_batched(spec) for spec in specs)
    if not dense or all(spec.shape[0] is not None for spec in specs):
        return dataset
    nothing = tf.nest.map_structure(_no_rows, dataset.element_spec)

    def hold_back(held: Any, batch: Any) -> Any:
        rows, before = _count(batch), _count(held)
        is_rest = (rows > 0) & (rows < least) & (before > 0)
        missing = tf.where(is_rest, tf.minimum(least - rows, before), 0)
        filled = _joined(_sliced(held, before - missing, before), batch)
        return filled, _sliced(held, 0, before if repeat else before - missing)

    end = tf.data.Dataset.from_tensors(nothing)
    return dataset.concatenate(end).scan(nothing, hold_back).skip(1)


def part(dataset: Any, *, first: int, count: int, of: int) -> Any:
    """Parts `first` to `first + count - 1` of each batch cut into `of` parts, one element each."""

    def cut(batch: Any, number: Any) -> Any:
        total = _count(batch)
        return _sliced(batch, total * number // of, total * (number + 1) // of)

    if count == 1:
        return _mapped(dataset, lambda batch: cut(batch, first))
    numbers = tf.data.Dataset.range(first, first + count)
    return dataset.flat_map(lambda *parts: numbers.map(lambda number: cut(_element(dataset, parts), number)))


def _mapped(dataset: Any, function: Callable[[Any], Any]) -> Any:
    return dataset.map(lambda *parts: function(_element(dataset, parts)), num_parallel_calls=tf.data.AUTOTUNE)


def _element(dataset: Any, parts: Any) -> Any:
    """Undo what tf.data does to an element that is a tuple: it passes it as several arguments."""
    return parts if isinstance(dataset.element_spec, tuple) else parts[0]


def _is_batched(spec: Any) -> bool:
    known = isinstance(spec, (tf.TensorSpec, tf.RaggedTensorSpec))
    return known and spec.shape.rank is not None and spec.shape.rank > 0


def _has_own_rows(value: Any) -> bool:
    return isinstance(value, (tf.Tensor, tf.RaggedTensor)) and bool(value.shape.rank)


def _count(batch: Any) -> Any:
    first = next(value for value in tf.nest.flatten(batch) if _has_own_rows(value))
    return first.nrows() if isinstance(first, tf.RaggedTensor) else tf.shape(first, out_type=tf.int64)[0]


def _sliced(batch: Any, start: Any, end: Any) -> Any:
    return tf.nest.map_structure(
        lambda value: value[start:end] if _has_own_rows(value) else value,
        batch,
    )


def _joined(first: Any, second: Any) -> Any:
    return tf.nest.map_structure(lambda a, b: tf.concat([a, b], axis=0), first, second)


def _no_rows(spec: Any) -> Any:
    return tf.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype)


def _full_batches_of(dataset: Any, multiple: int) -> bool:
    """Whether the rows are known to divide, as with `drop_remainder=True`."""
    sizes = [spec.shape[0] for spec in tf.nest.flatten(dataset.element_spec) if _is_batched(spec)]
    return all(size is not None and size % multiple == 0 for size in sizes)
