"""Training data: an endless stream of which every step takes the same examples, however often it restarts.

The stream is the data set over and over, shuffled anew each epoch by a function of seed and epoch. Step s
takes the examples [s * global batch, (s + 1) * global batch) of it, and worker i of n every n-th of them,
beginning with the i-th. So the position is a function of the step alone, and every batch is full.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.resume import announce
from trainjob_trainer.seeking import ReadOver, reorders_itself, takes_step

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


class TrainingSource:
    """The user's function of the training data."""

    def __init__(self, load: Callable[..., Any]) -> None:
        """Call it, unless it wants to know the step.

        Args:
            load: takes nothing, and returns all examples; or takes `step`, and returns examples without end,
                the first ones being those of that step.

        Raises:
            InvalidConfiguration: as `measure`.
        """
        self._load = load
        self._seeks = takes_step(load)
        self._data: dict[int, TrainingData] = {} if self._seeks else {0: measure(load(), "train")}

    @property
    def examples(self) -> int | None:
        """How many examples there are, or None when they are endless."""
        return None if self._seeks else self._data[0].examples

    def at(self, step: int) -> TrainingData:
        """What the function returns when so many steps are done.

        Raises:
            InvalidConfiguration: as `check_examples`; or what begins at a step ends.
        """
        if not self._seeks:
            return self._data[0]
        if step not in self._data:
            self._data[step] = self._from_step(step)
        return self._data[step]

    def stream(self, *, step: int, global_batch: int, seed: int, shuffle: bool) -> Any:
        """Examples from a step on, for ever."""
        data = self.at(step)
        if self._seeks:
            return data.dataset
        return endless_stream(data, seed=seed, position=step * global_batch, shuffle=shuffle)

    def read_over(self, step: int, global_batch: int) -> ReadOver | None:
        """Who tells what coming to that step takes; None where it takes nothing."""
        if self._seeks or step == 0:
            return None
        data, position = self.at(step), step * global_batch
        return ReadOver(step, position - _first_epoch(data, position) * (data.examples or 0))

    def _from_step(self, step: int) -> TrainingData:
        dataset = self._load(step=step)
        check_examples(dataset, "train")
        if int(dataset.cardinality()) not in (tf.data.INFINITE_CARDINALITY, tf.data.UNKNOWN_CARDINALITY):
            raise InvalidConfiguration(
                "train(step) must return examples without end, as .repeat() does: how many epochs they are "
                "is yours to say, by steps=..."
            )
        return TrainingData(dataset, None)


def measure(dataset: Any, name: str) -> TrainingData:
    """Find out how many examples there are; where TensorFlow can't tell, by reading all of them once.

    Raises:
        InvalidConfiguration: as `check_examples`, or an empty one.
    """
    check_examples(dataset, name)
    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        return TrainingData(dataset, None)
    if count == tf.data.UNKNOWN_CARDINALITY:
        announce(f"counting the examples of {name}(); `tf.data.experimental.assert_cardinality` saves that")
        count = int(dataset.reduce(tf.constant(0, tf.int64), lambda total, *_: total + 1))
    if count == 0:
        raise InvalidConfiguration(f"{name}() has no examples")
    return TrainingData(dataset, count)


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


def endless_stream(data: TrainingData, *, seed: int, position: int, shuffle: bool) -> Any:
    """Examples from `position` on, for ever; what must be read before it is read and dropped."""
    if data.examples is None:
        return data.dataset.skip(position)
    epoch = _first_epoch(data, position)
    offset = position - epoch * data.examples
    buffer = shuffle_buffer(data)

    def one_epoch(number: Any) -> Any:
        if not shuffle:
            return data.dataset
        # Within this traced function only: the order must not depend on TensorFlow's global seed, which the
        # user may set anywhere, and which may not be 0 beside a seed that is a tensor.
        tf.random.set_seed(1)
        return data.dataset.shuffle(buffer, seed=number + seed * _SEED_STRIDE, reshuffle_each_iteration=False)

    return tf.data.Dataset.range(epoch, tf.int64.max).flat_map(one_epoch).skip(offset)


def _first_epoch(data: TrainingData, position: int) -> int:
    """The epoch to read from: the one of the position, unless earlier ones decide on its order."""
    return 0 if data.examples is None or reorders_itself(data.dataset) else position // data.examples


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
