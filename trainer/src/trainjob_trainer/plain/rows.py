"""Batched data sets by their rows: joined, and cut into parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from trainjob_trainer.engine.replica_share import Part


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


def are_equal(dataset: Any, parts: int) -> bool:
    """Whether each batch is known to have as many rows for each part, as with `drop_remainder=True`."""
    sizes = [spec.shape[0] for spec in tf.nest.flatten(dataset.element_spec) if _is_batched(spec)]
    return all(size is not None and size % parts == 0 for size in sizes)


def fill_rest(dataset: Any, least: int) -> Any:
    """Bring a last batch of fewer than `least` rows up to that number, with rows of the batch before it.

    The number of batches stays. Only the last batch may be smaller than the others. Batches of unequal width
    can't be joined, so that some parts of such a rest have no rows.

    Args:
        dataset: batches of dense tensors; others are left alone.
        least: rows that a batch needs.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    dense = all(isinstance(spec, tf.TensorSpec) and _is_batched(spec) for spec in specs)
    if not dense or all(spec.shape[0] is not None for spec in specs):
        return dataset
    nothing = tf.nest.map_structure(_no_rows, dataset.element_spec)

    def hold_back(held: Any, batch: Any) -> Any:
        rows, before = _count(batch), _count(held)
        is_rest = (rows > 0) & (rows < least) & (before > 0) & _are_of_one_width(held, batch)
        missing = tf.where(is_rest, tf.minimum(least - rows, before), 0)
        moved = _sliced(held, before - missing, before)
        filled = tf.cond(is_rest, lambda: _joined(moved, batch), lambda: batch)
        return filled, _sliced(held, 0, before - missing)

    end = tf.data.Dataset.from_tensors(nothing)
    return dataset.concatenate(end).scan(nothing, hold_back).skip(1)


def part(dataset: Any, *, first: int, count: int, of: int, weighed: bool = False) -> Any:
    """Parts `first` to `first + count - 1` of each batch cut into `of` parts, one element each.

    Args:
        dataset: of batches.
        first: number of the first part, from 0.
        count: how many parts.
        of: parts of a batch.
        weighed: whether an element is a `Part`, which always has rows: see `part_of`.
    """

    def cut(batch: Any, number: Any) -> Any:
        total = _count(batch)
        if not weighed:
            return _sliced(batch, total * number // of, total * (number + 1) // of)
        begin, end, copies = part_of(total, number, of)
        share = tf.cast(end - begin, tf.float32) / tf.cast(total * copies, tf.float32)
        return Part(_sliced(batch, begin, end), share)

    if count == 1:
        return _mapped(dataset, lambda batch: cut(batch, first))
    numbers = tf.data.Dataset.range(first, first + count)
    return dataset.flat_map(lambda *parts: numbers.map(lambda number: cut(_element(dataset, parts), number)))


def part_of(total: Any, number: Any, of: int) -> tuple[Any, Any, Any]:
    """Where a part begins and ends, and how many parts have these same rows.

    With fewer rows than parts, each part is one row, and some have the same one.

    Args:
        total: rows of the batch, at least 1.
        number: of the part, from 0.
        of: parts of the batch.
    """
    begin = total * number // of
    later = total * (number + 1) // of
    is_empty = later == begin
    end = later + (is_empty if isinstance(is_empty, bool) else tf.cast(is_empty, later.dtype))
    copies = -(-(begin + 1) * of // total) + (-begin * of // total)
    return begin, end, copies


def _mapped(dataset: Any, function: Callable[[Any], Any]) -> Any:
    return dataset.map(lambda *parts: function(_element(dataset, parts)), num_parallel_calls=tf.data.AUTOTUNE)


def _element(dataset: Any, parts: Any) -> Any:
    """Undo what tf.data does to an element that is a tuple: it passes it as several arguments."""
    return parts if isinstance(dataset.element_spec, tuple) else parts[0]


def _is_batched(spec: Any) -> bool:
    known = isinstance(spec, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec))
    return known and spec.shape.rank is not None and spec.shape.rank > 0


def _has_own_rows(value: Any) -> bool:
    return isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)) and bool(value.shape.rank)


def _count(batch: Any) -> Any:
    first = next(value for value in tf.nest.flatten(batch) if _has_own_rows(value))
    return first.nrows() if isinstance(first, tf.RaggedTensor) else tf.shape(first, out_type=tf.int64)[0]


def _sliced(batch: Any, start: Any, end: Any) -> Any:
    def of(value: Any) -> Any:
        if isinstance(value, tf.SparseTensor):
            width = value.dense_shape[1:]
            begin = tf.concat([[start], tf.zeros_like(width)], axis=0)
            return tf.sparse.slice(value, begin, tf.concat([[end - start], width], axis=0))
        return value[start:end] if _has_own_rows(value) else value

    return tf.nest.map_structure(of, batch)


def _joined(first: Any, second: Any) -> Any:
    return tf.nest.map_structure(lambda a, b: tf.concat([a, b], axis=0), first, second)


def _are_of_one_width(first: Any, second: Any) -> Any:
    pairs = zip(tf.nest.flatten(first), tf.nest.flatten(second))
    return tf.reduce_all([tf.reduce_all(tf.shape(a)[1:] == tf.shape(b)[1:]) for a, b in pairs])


def _no_rows(spec: Any) -> Any:
    return tf.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype)
