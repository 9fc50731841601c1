"""Training data: an endless stream of which every step takes the same examples, however often it restarts.

The stream is the data set over and over, shuffled anew each epoch by a function of seed and epoch. Step s
takes the examples [s * global batch, (s + 1) * global batch) of it, and worker i of n every n-th of them,
beginning with the i-th. So the position is a function of the step alone, and every batch is full.

Where workers read parts of their own, each has a stream of its own, and takes global batch / n of it a step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainjob_trainer.data.part import Part
from trainjob_trainer.data.seeking import ReadOver
from trainjob_trainer.data.turns import Place
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.reporting.lines import announce

SHUFFLE_BYTES = 256 * 2**20
"""Upper bound of the shuffle buffer; data sets up to that size are shuffled perfectly."""
_UNKNOWN_EXAMPLE_BYTES = 64 * 1024
_SEED_STRIDE = 1_000_003
_ONE_TO_ONE = ("MapDataset", "ParallelMapDataset", "PrefetchDataset", "ShuffleDataset", "OptionsDataset")
"""TensorFlow's names for stages that return one element for each they take."""


@dataclass(frozen=True)
class TrainingData:
    """What the user's function returned.

    Attributes:
        dataset: unbatched examples.
        examples: how many, or None when it is endless.
    """

    dataset: Any
    examples: int | None


def measure(dataset: Any, name: str) -> TrainingData:
    """Find out how many examples there are, of which there must be some.

    Raises:
        InvalidConfiguration: as `check_examples`, or there are none.
    """
    data = count(dataset, name)
    refuse_empty(data, name)
    return data


def count(dataset: Any, name: str) -> TrainingData:
    """Find out how many examples there are; where TensorFlow can't tell, by reading all of them once.

    Raises:
        InvalidConfiguration: as `check_examples`.
    """
    check_examples(dataset, name)
    examples = int(dataset.cardinality())
    if examples == tf.data.INFINITE_CARDINALITY:
        return TrainingData(dataset, None)
    if examples == tf.data.UNKNOWN_CARDINALITY:
        announce(f"counting the examples of {name}(); `tf.data.experimental.assert_cardinality` saves that")
        records = equally_many(dataset)
        examples = int(records.reduce(tf.constant(0, tf.int64), lambda total, *_: total + 1))
    return TrainingData(dataset, examples)


def equally_many(dataset: Any) -> Any:
    """The earliest stage of a pipeline with as many elements: counting needs none of what comes after.

    Decoding images takes far longer than reading them.
    """
    while type(dataset).__name__.lstrip("_") in _ONE_TO_ONE and len(dataset._inputs()) == 1:
        (dataset,) = dataset._inputs()
    return dataset


def refuse_empty(data: TrainingData, name: str) -> None:
    """Refuse data without any example.

    Raises:
        InvalidConfiguration: there is none.
    """
    if data.examples == 0:
        raise InvalidConfiguration(f"{name}() has no examples")


def check_examples(dataset: Any, name: str) -> None:
    """Refuse what no batches can be made of.

    Raises:
        InvalidConfiguration: no tf.data set, one that is batched already or of unknown shapes.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise InvalidConfiguration(f"{name}() must return a tf.data.Dataset, got {type(dataset).__name__}")
    if _looks_batched(dataset.element_spec):
        raise InvalidConfiguration(
            f"{name}() returns batches: return single examples, the trainer makes batches for all workers"
        )
    if any(part.shape.rank is None for part in tf.nest.flatten(dataset.element_spec)):
        raise InvalidConfiguration(
            f"{name}() does not say the shapes of its examples, and the model is built from them: give "
            "from_generator an output_signature, or set them in a map with tf.ensure_shape"
        )


def stream_in_turn(
    turns: Sequence[TrainingData], place: Place, *, part: Part, seed: int, shuffle: bool
) -> Any:
    """Examples from a place on: one data set after the other, over and over.

    What must be read to come to the place is read and dropped.

    Args:
        turns: what is read, in order; one that is endless is alone.
        place: where to begin; what is read first may be passed by its offset.
        part: the worker's, so that no two shuffle alike.
        seed: of the order.
        shuffle: whether each pass has another order.
    """
    if turns[0].examples is None:
        return turns[0].dataset.skip(place.offset)

    def one_pass(data: TrainingData, number: Any) -> Any:
        if not shuffle:
            return data.dataset
        # Within a traced function only: the order must not depend on TensorFlow's global seed, which the
        # user may set anywhere, and which may not be 0 beside a seed that is a tensor.
        tf.random.set_seed(1)
        order = number * part.count + part.index + seed * _SEED_STRIDE
        return data.dataset.shuffle(shuffle_buffer(data), seed=order, reshuffle_each_iteration=False)

    def from_turn(first: int) -> Callable[[Any], Any]:
        def rest_of_cycle(cycle: Any) -> Any:
            passes = [one_pass(turns[at], cycle * len(turns) + at) for at in range(first, len(turns))]
            return functools.reduce(lambda one, next_one: one.concatenate(next_one), passes)

        return rest_of_cycle

    cycles = tf.data.Dataset.range(place.cycle + bool(place.turn), tf.int64.max)
    stream = cycles.flat_map(from_turn(0))
    if place.turn:
        begun = tf.data.Dataset.range(place.cycle, place.cycle + 1)
        stream = begun.flat_map(from_turn(place.turn)).concatenate(stream)
    return stream.skip(place.offset)


def worker_batches(
    stream: Any, *, workers: int, worker: int, batch: int, read_over: ReadOver | None = None
) -> Any:
    """This worker's share, in full batches of one device each, declared endless.

    On a data set that may end, TensorFlow asks all workers before each step whether there is more.
    """
    begun = stream if read_over is None else read_over.begin(stream)
    share = begun.shard(workers, worker).batch(batch, drop_remainder=True)
    if read_over is not None:
        share = read_over.end(share)
    options = tf.data.Options()
    options.deterministic = True
    endless = share.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return endless.with_options(options).prefetch(tf.data.AUTOTUNE)


def shuffle_buffer(data: TrainingData) -> int:
    """Examples held for shuffling: all of them, or as many as `SHUFFLE_BYTES` hold."""
    size = max(1, example_bytes(data.dataset.element_spec))
    return max(1, min(data.examples or SHUFFLE_BYTES, SHUFFLE_BYTES // size))


def example_bytes(spec: Any) -> int:
    """Bytes of one example by its static shape; a guess for parts whose size varies."""
    return sum(_part_bytes(part) for part in tf.nest.flatten(spec))


def _part_bytes(part: Any) -> int:
    shape = getattr(part, "shape", None)
    if shape is None or not shape.is_fully_defined() or part.dtype == tf.string:
        return _UNKNOWN_EXAMPLE_BYTES
    return int(math.prod(shape.as_list()) * part.dtype.size)


def _looks_batched(spec: Any) -> bool:
    """Every component, the label too, has an open first dimension: what `.batch(n)` leaves behind."""
    shapes = [getattr(part, "shape", None) for part in tf.nest.flatten(spec)]
    return bool(shapes) and all(
        shape is not None and shape.rank is not None and shape.rank > 0 and shape[0] is None
        for shape in shapes
    )
