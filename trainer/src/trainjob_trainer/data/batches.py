"""Training data: an endless stream of which every step takes the same examples, however often it restarts.

The stream is the data set over and over, shuffled anew each epoch by a function of seed and epoch. Step s
takes the examples [s * global batch, (s + 1) * global batch) of it, and worker i of n every n-th of them,
beginning with the i-th. So the position is a function of the step alone, and every batch is full.

Where workers read parts of their own, each has a stream of its own, and takes global batch / n of it a step.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.reporting.progress import announce
from trainjob_trainer.task import Task

# Which part of the training data a worker reads, and in which order where it lies in files.


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


# Coming to the examples of a step: for free where the user's function can, else by reading up to them.


_SECONDS_WORTH_TELLING = 1.0

as_written: Callable[[Callable[..., Any]], Callable[..., Any]] = tf.autograph.experimental.do_not_convert
"""For functions of ours that tf.data traces: AutoGraph would rewrite each, which takes a second in all."""


def reorders_itself(dataset: Any) -> bool:
    """Whether a pipeline shuffles anew each time it is read, so that an epoch follows from those before it.

    Only what TensorFlow lets one see: not a pipeline within a `flat_map` or `interleave`.
    """
    ahead = [dataset]
    while ahead:
        one = ahead.pop()
        if getattr(one, "_reshuffle_each_iteration", False):
            return True
        ahead.extend(one._inputs() if hasattr(one, "_inputs") else ())
    return False


class ReadOver:
    """Tells what it took to read over `examples` of a stream, to go on at `step`, when it took long."""

    def __init__(
        self,
        step: int,
        examples: int,
        tell: Callable[[str], None] = announce,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._step = step
        self._examples = examples
        self._tell = tell
        self._clock = clock
        self._began: float | None = None

    def begin(self, stream: Any) -> Any:
        """The same stream; the clock starts when it is first asked for an example."""
        start = tf.data.Dataset.from_tensors(np.int64(0)).map(as_written(lambda _: _called(self._start)))
        return start.flat_map(as_written(lambda _: stream))

    def end(self, batches: Any) -> Any:
        """The same batches; the clock stops when the first one is there."""

        @as_written
        def pass_on(number: Any, batch: Any) -> Any:
            stop = tf.cond(tf.equal(number, 0), lambda: _called(self._stop), lambda: tf.constant(0, tf.int64))
            with tf.control_dependencies([stop]):
                return tf.nest.map_structure(tf.identity, batch)

        return batches.enumerate().map(pass_on)

    def _start(self) -> None:
        self._began = self._clock()

    def _stop(self) -> None:
        seconds = self._clock() - self._began if self._began is not None else 0.0
        if seconds > _SECONDS_WORTH_TELLING:
            self._tell(
                f"it took {seconds:.1f} s to read train() up to step {self._step} ({self._examples:,} "
                "examples); a train(step) that begins there saves that"
            )


def _called(function: Callable[[], None]) -> Any:
    def call() -> Any:
        function()
        return np.int64(0)

    number = tf.numpy_function(call, [], tf.int64)
    number.set_shape([])
    return number


# Whose turn it is: which parts of the training data a worker reads, one after the other.
#
# Workers take equally many examples a step. Where one part is smaller than another, its examples would come
# more often, and count for more. So then every worker goes on to the next part when it is through with one:
# each reads every example once before any example comes again.


NEARLY_EQUAL = 0.01
"""Parts that differ by no more stay with their workers, who then never read another's."""


@dataclass(frozen=True)
class Place:
    """A place in parts that are read one after the other, over and over.

    All have been read `cycle` times, then `turn` of them, and `offset` examples of the next one.
    """

    cycle: int
    turn: int
    offset: int


def are_nearly_equal(sizes: Sequence[int]) -> bool:
    """Whether the largest part is at most `NEARLY_EQUAL` larger than the smallest."""
    return max(sizes) <= min(sizes) * (1 + NEARLY_EQUAL)


def turns(sizes: Sequence[int], worker: int) -> list[int]:
    """The parts that a worker reads, in order: its own alone, or all of them from its own on."""
    if are_nearly_equal(sizes):
        return [worker]
    return [(worker + turn) % len(sizes) for turn in range(len(sizes))]


def place_of(sizes: Sequence[int], position: int) -> Place:
    """Where one stands after `position` examples of parts that are read in this order."""
    cycle, left = divmod(position, sum(sizes))
    for turn, size in enumerate(sizes):
        if left < size:
            return Place(cycle, turn, left)
        left -= size
    raise AssertionError("more was left than all parts hold")


SHUFFLE_BYTES = 256 * 2**20
"""Upper bound of the shuffle buffer; data sets up to that size are shuffled perfectly."""
_UNKNOWN_EXAMPLE_BYTES = 64 * 1024
_SEED_STRIDE = 1_000_003
_ONE_TO_ONE = ("MapDataset", "ParallelMapDataset", "PrefetchDataset", "ShuffleDataset", "OptionsDataset")
"""TensorFlow's names for stages that return one element for each they take."""


@dataclass(frozen=True)
class TrainingData:
    """Unbatched examples that the user's function returned, and how many; None when they are endless."""

    dataset: Any
    examples: int | None


def measure(dataset: Any, name: str) -> TrainingData:
    """Count the examples, as `count` does, and refuse data without any."""
    data = count(dataset, name)
    refuse_empty(data, name)
    return data


def count(dataset: Any, name: str) -> TrainingData:
    """Check the examples and find out how many there are, by reading them once if TensorFlow can't tell."""
    check_examples(dataset, name)
    examples = int(dataset.cardinality())
    if examples == tf.data.INFINITE_CARDINALITY:
        return TrainingData(dataset, None)
    if examples == tf.data.UNKNOWN_CARDINALITY:
        announce(f"counting the examples of {name}(); `tf.data.experimental.assert_cardinality` saves that")
        records = equally_many(dataset)
        examples = count_elements(records)
    return TrainingData(dataset, examples)


def count_elements(dataset: Any) -> int:
    """Count by reading all of it."""
    return int(dataset.reduce(tf.constant(0, tf.int64), as_written(lambda total, *_: total + 1)))


def equally_many(dataset: Any) -> Any:
    """The earliest stage of a pipeline with as many elements: counting needs none of what comes after.

    Decoding images takes far longer than reading them.
    """
    while type(dataset).__name__.lstrip("_") in _ONE_TO_ONE and len(dataset._inputs()) == 1:
        (dataset,) = dataset._inputs()
    return dataset


def refuse_empty(data: TrainingData, name: str) -> None:
    """Refuse data without any example."""
    if data.examples == 0:
        raise InvalidConfiguration(f"{name}() has no examples")


def check_examples(dataset: Any, name: str) -> None:
    """Refuse what is no tf.data set, is batched already, or does not say its shapes."""
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

    What must be read to come to the place is read and dropped. An endless data set is alone. If they are
    shuffled, each pass has another order, and so has each worker's `part`.
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
        @as_written
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


def shared_out(strategy: Any, of_worker: Callable[[Any], Any]) -> Any:
    """`distribute_datasets_from_function`, with nothing between a data set and a worker's only processor.

    TensorFlow's iterator over several devices traces three functions each time it is made (30 to 60 ms), and
    makes a remote call for each batch (0.15 ms). A GPU needs it: it copies a batch ahead to the device.
    """
    shared = strategy.distribute_datasets_from_function(of_worker)
    is_split = isinstance(shared, tf.distribute.DistributedDataset)  # not where there's but one device
    devices = list(strategy.extended.worker_devices) if is_split else []
    if len(devices) == 1 and "CPU" in devices[0] and getattr(shared, "_options", ...) is None:
        shared._options = tf.distribute.InputOptions(
            experimental_fetch_to_device=False,
            experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
        )
    return shared


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
