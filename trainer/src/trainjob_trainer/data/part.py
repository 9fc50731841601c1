"""Which part of the training data a worker reads, and in which order where it lies in files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import tensorflow as tf

from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.task import Task

Item = TypeVar("Item")


@dataclass(frozen=True)
class Part:
    """One of as many parts of the training data as there are workers.

    Attributes:
        index: its number, from 0.
        count: how many parts there are.
    """

    index: int = 0
    count: int = 1

    def of(self, items: Sequence[Item]) -> list[Item]:
        """Every `count`-th of the items from the `index`-th on: no other part has them.

        Args:
            items: in the same order on every worker, such as sorted names of files.
        """
        return list(items)[self.index :: self.count]


def part_of(task: Task) -> Part:
    """The part that a process reads: all, where it trains by itself, hands out the steps or evaluates."""
    if task.is_coordinator or task.is_evaluator:
        return Part()
    return Part(task.rank, task.num_workers)


# Examples that lie in files: several files are read at a time, in an order that is always the same.


FILES_AT_ONCE = 16
"""A constant, since it decides on the order: TensorFlow's own choice depends on the machine's processors."""


def interleaved(
    files: str | Sequence[str],
    parse: Callable[..., Any] | None = None,
    *,
    part: Part | None = None,
    read: Callable[[Any], Any] | None = None,
) -> Any:
    """A tf.data set of the records of many files, which never holds more than a few of them in memory.

    Several files are read and parsed in parallel, as many as TensorFlow finds useful. The order is a function
    of the files' names and contents alone.

    Args:
        files: their names, or a pattern such as `/data/train-*.tfrecord`; sorted by name.
        parse: makes an example of a record, by TensorFlow's operations.
        part: what to read. Where there are enough files, every `count`-th of them; else every `count`-th
            record of all, and only those are parsed.
        read: makes a tf.data set of a file's name; `tf.data.TFRecordDataset` by default.

    Raises:
        InvalidConfiguration: there are no such files.
    """
    paths = _sorted_paths(files)
    by_record = part is not None and len(paths) < part.count
    own = paths if part is None or by_record else part.of(paths)
    records = tf.data.Dataset.from_tensor_slices(own).interleave(
        read or tf.data.TFRecordDataset,
        cycle_length=FILES_AT_ONCE,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    if part is not None and by_record:
        records = records.shard(part.count, part.index)
    if parse is None:
        return records
    return records.map(parse, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _sorted_paths(files: str | Sequence[str]) -> list[str]:
    paths = tf.io.gfile.glob(files) if isinstance(files, str) else [str(path) for path in files]
    if not paths:
        where = f"match {files}" if isinstance(files, str) else "are named"
        raise InvalidConfiguration(f"interleaved: no files {where}; do all replicas see the data's volume?")
    return sorted(paths)
