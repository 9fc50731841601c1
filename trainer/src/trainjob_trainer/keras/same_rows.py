"""Comparison of what the workers read: all are to read the same batches, of which each cuts out its own rows.

Each worker hashes whole elements of the data before they are cut: the first ones of each epoch and a few
others, drawn by their number, so that all workers hash the same ones. The hashes are compared after the first
call and at the end of each epoch. A random augmentation differs from worker to worker, although all read the
same rows. So rows are the same if one component, such as the labels, is the same, and could hardly be the
same for other rows.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import tensorflow as tf

from trainjob_trainer.distribution.collective import gather_all
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.keras.pipelines import as_written
from trainjob_trainer.reporting.progress import notice
from trainjob_trainer.task import Task

FIRST, DRAWN = 2, 4
"""Batches of an epoch that are hashed: the first ones, and about so many others."""
CERTAIN = 14.0
"""Natural logarithm of the number of orders that makes a component certain: chance is one in a million."""


@dataclass(frozen=True)
class Component:
    """One component of the hashed elements, such as the labels, as one worker has read it.

    Attributes:
        checksum: 32 bits.
        orders: natural logarithm of the number of different orders that its rows could have, rounded down.
    """

    checksum: int
    orders: int

    @classmethod
    def of(cls, rows: Sequence[bytes]) -> Component:
        """Summarize the hashes of its rows, in the order in which they were read."""
        counts = Counter(rows).values()
        orders = math.lgamma(len(rows) + 1) - sum(math.lgamma(count + 1) for count in counts)
        return cls(zlib.crc32(b"".join(rows)), int(orders))


class Verdict(Enum):
    """Whether two workers have read the same rows."""

    SAME = "same"
    OTHER = "other"
    OPEN = "open"
    """What is the same on both could be so by chance: more elements will show it."""


def judge(first: Sequence[Component], other: Sequence[Component], *, is_epoch: bool) -> Verdict:
    """Judge by the same components of two workers, of a whole epoch or of the first call only."""
    alike = [min(one.orders, two.orders) for one, two in zip(first, other) if one.checksum == two.checksum]
    if len(alike) == len(first) or max(alike, default=0) >= CERTAIN:
        return Verdict.SAME
    return Verdict.OPEN if max(alike, default=0) > 0 or (alike and not is_epoch) else Verdict.OTHER


class SameRows:
    """Hashes elements of one data set on each worker and compares the hashes.

    Args:
        of_epoch: batches of an epoch, if known: then some `DRAWN` further ones of it; else ever fewer.
    """

    def __init__(self, strategy: Any, task: Task, of_epoch: int = 0) -> None:
        self._strategy = strategy
        self._task = task
        self._of_epoch = of_epoch
        self._dataset: Any = None
        self._open: list[list[bytes]] = []
        self._rows: dict[int, Sequence[Any]] = {}
        self._read = 0
        self._is_compared = False
        with tf.init_scope(), tf.device("/CPU:0"):
            self._epoch = tf.Variable(0, dtype=tf.int64, trainable=False)

    def begin(self, epoch: int) -> None:
        """Forget what was read, since a new iterator begins in this epoch."""
        self._epoch.assign(epoch)
        self._rows.clear()
        self._read = 0

    def take(self, steps: int, *, is_end: bool = False) -> None:
        """Count steps that were taken from the iterator; compare after the first one, and at an epoch's end.

        All workers call it after the same steps; raises as `compare`.
        """
        self._read += steps
        if is_end or not self._is_compared:
            self.compare(is_epoch=is_end)

    def hashed(self, dataset: Any) -> Any:
        """Return a data set of the same elements, some of which are hashed as they are read."""
        self._dataset = dataset
        self._forget()

        def hash_rows(number: Any, element: Any) -> Any:
            hashes = []
            for one in _tensors(element):
                rows = tf.expand_dims(one, 0) if one.shape.rank == 0 else one
                flat = tf.reshape(rows, [tf.shape(rows)[0], tf.reduce_prod(tf.shape(rows)[1:])])
                hashes.append(tf.raw_ops.Fingerprint(data=flat, method="farmhash64"))  # 8 bytes for each
            return tf.numpy_function(self._note, [number, *hashes], tf.int64)

        @as_written
        def pass_on(number: Any, element: Any) -> Any:
            epoch, place, choices = self._epoch, number, number // FIRST + 1
            if self._of_epoch:
                epoch, place = self._epoch + number // self._of_epoch, number % self._of_epoch
                others = tf.constant(max(1, self._of_epoch // DRAWN), tf.int64)
                choices = tf.where(place < FIRST, tf.ones_like(others), others)
            drawn = tf.random.stateless_uniform([], [epoch, place], 0, choices, tf.int64)
            done = tf.cond(
                tf.equal(drawn, 0), lambda: hash_rows(number, element), lambda: tf.constant(0, tf.int64)
            )
            flat = tf.nest.flatten(element, expand_composites=True)
            with tf.control_dependencies([done]):
                passed = [tf.identity(one) if tf.is_tensor(one) else one for one in flat]
            return tf.nest.pack_sequence_as(element, passed, expand_composites=True)

        return dataset.enumerate().map(pass_on)

    def compare(self, *, is_epoch: bool = True, is_end: bool = False) -> None:
        """Compare what the steps have read, or all that was read if that has ended.

        All workers call it together. Raises InvalidConfiguration on all of them if they read different rows.
        """
        self._is_compared = True
        due = sorted(number for number in self._rows if is_end or number < self._read)
        for number in due:
            for component, rows in zip(self._open, self._rows.pop(number)):
                component.extend(map(bytes, rows))
        own = [Component.of(rows) for rows in self._open]
        told = gather_all(
            self._strategy, self._task, [number for one in own for number in (one.checksum, one.orders)]
        )
        first, *others = [[Component(*pair) for pair in zip(one[::2], one[1::2])] for one in told]
        verdicts = [judge(first, other, is_epoch=is_epoch) for other in others]
        if Verdict.OPEN not in verdicts:
            self._forget()
        names = [name for name, one in zip(self._task.trainees[1:], verdicts) if one is Verdict.OTHER]
        if names and augments_at_random(self._dataset):
            if self._task.is_writer:
                _notice_once(
                    "a random map changes every component of the training data, differently on each worker: "
                    "it can't be checked that all workers read the same rows"
                )
        elif names:
            raise InvalidConfiguration(describe(self._task.trainees[0], names))

    def _forget(self) -> None:
        self._open = [[] for _ in _tensors(self._dataset.element_spec)]

    def _note(self, number: Any, *parts: Any) -> Any:
        self._rows[int(number)] = parts
        return np.int64(0)


def augments_at_random(dataset: Any) -> bool:
    """Return whether a parallel `map` draws random numbers: which element gets which differs by worker."""
    if "ParallelMap" in type(dataset).__name__:
        graph = dataset._map_func.function.graph.as_graph_def()
        inner = [node for function in graph.library.function for node in function.node_def]
        kinds = ("Random", "Multinomial", "TruncatedNormal")
        if any(kind in node.op for node in [*graph.node, *inner] for kind in kinds):
            return True
    return any(map(augments_at_random, dataset._inputs() if hasattr(dataset, "_inputs") else ()))


_notice_once = functools.cache(notice)


def describe(first: str, others: Sequence[str]) -> str:
    """Return the message: who read other rows than the `first` worker, and what to do."""
    return (
        f"{', '.join(others)} read other rows than {first}. Each worker takes its part of every batch, so "
        "some rows would be trained on twice, others never. All must read the same batches: seed everything "
        "that draws random numbers for the data, sort the file names, and give a PyDataset that draws "
        "random numbers workers=1. A script that shares its rows out itself sets AutoShardPolicy.OFF. "
        "TRAIN_COMPARE_DATA=false turns the check off"
    )


def _tensors(element: Any) -> list[Any]:
    """Return the tensors of an element, or their specs; a component may be None, or optional."""
    flat = tf.nest.flatten(element, expand_composites=True)
    return [
        one
        for one in flat
        if isinstance(one, (tf.Tensor, tf.TensorSpec)) and one.dtype not in (tf.variant, tf.resource)
    ]
