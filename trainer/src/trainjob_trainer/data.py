"""Training data: an endless stream of which every step takes the same examples, however often it restarts.

The stream is the data set over and over, shuffled anew each epoch by a function of seed and epoch. Step s
takes the examples [s * global batch, (s + 1) * global batch) of it, and worker i of n every n-th of them,
beginning with the i-th. So the position is a function of the step alone, and every batch is full.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.resume import announce

SHUFFLE_BYTES = 256 * 2**20
"""Upper bound of the shuffle buffer; data sets up to that size are shuffled perfectly."""
_UNKNOWN_EXAMPLE_BYTES = 64 * 1024
_SEED_STRIDE = 1_000_003


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
    """Find out how many examples there are; where TensorFlow can't tell, by reading all of them once.

    Raises:
        InvalidConfiguration: no tf.data set, an empty one, one that is batched already or of unknown shapes.
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
    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        return TrainingData(dataset, None)
    if count == tf.data.UNKNOWN_CARDINALITY:
        announce(f"counting the examples of {name}(); `tf.data.experimental.assert_cardinality` saves that")
        count = int(dataset.reduce(tf.constant(0, tf.int64), lambda total, *_: total + 1))
    if count == 0:
        raise InvalidConfiguration(f"{name}() has no examples")
    return TrainingData(dataset, count)


def endless_stream(data: TrainingData, *, seed: int, position: int, shuffle: bool) -> Any:
    """Examples from `position` on, for ever; what lies before within the epoch is read and dropped."""
    if data.examples is None:
        return data.dataset.skip(position)
    epoch, offset = divmod(position, data.examples)
    buffer = shuffle_buffer(data)

    def one_epoch(number: Any) -> Any:
        if not shuffle:
            return data.dataset
        # Within this traced function only: the order must not depend on TensorFlow's global seed, which the
        # user may set anywhere, and which may not be 0 beside a seed that is a tensor.
        tf.random.set_seed(1)
        return data.dataset.shuffle(buffer, seed=number + seed * _SEED_STRIDE, reshuffle_each_iteration=False)

    return tf.data.Dataset.range(epoch, tf.int64.max).flat_map(one_epoch).skip(offset)


def worker_batches(stream: Any, *, workers: int, worker: int, batch: int) -> Any:
    """This worker's share, in full batches of one device each, declared endless.

    On a data set that may end, TensorFlow asks all workers before each step whether there is more.
    """
    share = stream.shard(workers, worker).batch(batch, drop_remainder=True)
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
