"""Training data: an endless stream from which each step takes the same examples after any restart.

The stream repeats the data set, shuffled in each epoch by a function of seed and epoch. Step s takes its
examples [s * global batch, (s + 1) * global batch), and worker i of n takes every n-th of them, from the i-th
on. So the position is a function of the step alone, and every batch is full.

If workers read their own parts, each has its own stream, and takes global batch / n examples of it a step.
"""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import tensorflow as tf

from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.reporting.progress import ProgressFile, announce
from trainjob_trainer.task import Task

# The part of the training data that a worker reads.


Item = TypeVar("Item")


@dataclass(frozen=True)
class Part:
    """One part of the training data, which has as many parts as there are workers.

    Attributes:
        index: number of this part, from 0.
        count: number of parts.
    """

    index: int = 0
    count: int = 1

    def of(self, items: Sequence[Item]) -> list[Item]:
        """Return every `count`-th of the items from the `index`-th on: no other part has them.

        Args:
            items: in the same order on every worker, such as sorted file names.
        """
        return list(items)[self.index :: self.count]


def part_of(task: Task) -> Part:
    """Return the part that a process reads: all data if it trains alone, hands out the steps or evaluates."""
    if task.is_coordinator or task.is_evaluator:
        return Part()
    return Part(task.rank, task.num_workers)


# Examples in files: several files are read at a time, in a fixed order.


FILES_AT_ONCE = 16
"""A constant, since the order depends on it: TensorFlow's own choice depends on the machine's processors."""


def interleaved(
    files: str | Sequence[str],
    parse: Callable[..., Any] | None = None,
    *,
    part: Part | None = None,
    read: Callable[[Any], Any] | None = None,
) -> Any:
    """Return a tf.data set of the records of many files, which holds only a few of them in memory.

    Several files are read and parsed in parallel, as many as TensorFlow finds useful. The order is a function
    of the files' names and contents alone.

    Args:
        files: file names, or a pattern such as `/data/train-*.tfrecord`; they are sorted by name.
        parse: converts a record to an example, by TensorFlow's operations.
        part: the part to read. If there are enough files, it is every `count`-th file; else it is every
            `count`-th record of all files, and only those are parsed.
        read: opens a file name as a tf.data set; `tf.data.TFRecordDataset` by default.

    Raises:
        InvalidConfiguration: there are no such files.
    """
    paths = sorted(tf.io.gfile.glob(files) if isinstance(files, str) else [str(path) for path in files])
    if not paths:
        where = f"match {files}" if isinstance(files, str) else "are named"
        raise InvalidConfiguration(f"interleaved: no files {where}; do all replicas see the data's volume?")
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


# Reaching the examples of a step: the user's function begins there, or all examples before them are read.


_SECONDS_WORTH_TELLING = 1.0

as_written: Callable[[Callable[..., Any]], Callable[..., Any]] = tf.autograph.experimental.do_not_convert
"""For our functions that tf.data traces: AutoGraph would rewrite each, which takes a second in all."""


@dataclass(frozen=True)
class Reshuffle:
    """A `shuffle()` that has another order in each pass, by the number of iterators made on it before.

    Attributes:
        stage: the data set of this `shuffle()`.
        passes: how many passes it makes in one of the whole pipeline; None if only reading can show it.
        at_once: whether a new iterator of the pipeline makes one of this stage before anything is read.
    """

    stage: Any
    passes: int | None
    at_once: bool


def reshuffles(dataset: Any) -> list[Reshuffle]:
    """Return the stages that make the order of an epoch depend on those before it.

    They are those that TensorFlow exposes: not a pipeline within a `flat_map` or `interleave`.
    """
    found: list[Reshuffle] = []
    ahead: list[tuple[Any, int | None, bool]] = [(dataset, 1, True)]
    while ahead:
        one, passes, at_once = ahead.pop()
        kind = kind_of(one)
        if getattr(one, "_reshuffle_each_iteration", False):
            found.append(Reshuffle(one, passes, at_once))
        if kind == "RepeatDataset":
            times = int(one._count)
            passes = None if passes is None or times < 0 else passes * times
        elif kind in ("CacheDataset", "SnapshotDataset"):
            passes = None
        for number, source in enumerate(one._inputs() if hasattr(one, "_inputs") else ()):
            is_later = kind == "ShuffleDataset" or (kind == "ConcatenateDataset" and number > 0)
            ahead.append((source, passes, at_once and not is_later))
    return found


def pass_over(stages: Sequence[Reshuffle], passes: int, opened: int = 0) -> bool:
    """Bring the order to where it is after whole passes, and iterators that were opened and not read.

    Return False, and change nothing, if only reading can do that.
    """
    if passes and any(one.passes is None for one in stages):
        return False
    for one in stages:
        for _ in range(passes * (one.passes or 0) + opened * one.at_once):
            iter(one.stage)
    return True


def whole_passes(dataset: Any, taken: int) -> tuple[list[Reshuffle], int, int]:
    """Return what to pass over, how often, and how many elements to read then, to stand after `taken`.

    Whole passes needn't be read where `repeat()` comes last, or where only batches and stages of one element
    for each follow; else all is read. A pass has to end with a batch, so some more may be read.
    """
    rows, stage = 1, dataset
    while kind_of(stage) in _BATCHES or kind_of(stage) in _ONE_TO_ONE - {"ShuffleDataset"}:
        rows *= int(stage._batch_size) if kind_of(stage) in _BATCHES else 1
        (stage,) = stage._inputs()
    if kind_of(stage) != "RepeatDataset":
        return [], 0, taken
    (source,) = stage._inputs()
    length, found = int(source.cardinality()), reshuffles(source)
    if length <= 0 or calls(source, b"GeneratorDataset") or any(one.passes is None for one in found):
        return [], 0, taken
    together = rows // math.gcd(rows, length)
    passes = taken * rows // length // together * together
    return found, passes, taken - passes * length // rows


def kind_of(dataset: Any) -> str:
    """Return TensorFlow's name of a pipeline's last stage."""
    return type(dataset).__name__.lstrip("_")


def calls(dataset: Any, operation: bytes, variables: bool = False) -> bool:
    """Return whether a function of a pipeline has an operation of this name, or variables, if they matter."""
    graphs = [wrapped.function.graph for wrapped in dataset._functions()]
    return any(
        (variables and graph.variables) or operation in graph.as_graph_def().SerializeToString()
        for graph in graphs
    ) or any(calls(one, operation, variables) for one in dataset._inputs())


def depends_on_script(dataset: Any) -> bool:
    """Return whether what a pipeline returns may change with what the script does: it is read in time."""
    return isinstance(dataset, tf.data.Dataset) and calls(dataset, b"PyFunc", variables=True)


_FIXED = {"TensorSliceDataset", "TensorDataset", "RangeDataset"}


def is_fixed(dataset: Any) -> bool:
    """Return whether a pipeline returns the same elements each time: of fixed tensors, without any state."""
    sources = dataset._inputs()
    is_file = type(dataset).__module__.endswith("readers")
    reshuffled = getattr(dataset, "_reshuffle_each_iteration", False)
    if is_file or reshuffled or not (sources or kind_of(dataset) in _FIXED):
        return False
    graphs = [wrapped.function.graph for wrapped in dataset._functions()]
    operations = [one for graph in graphs for one in graph.get_operations()]
    has_state = any(one.op_def.is_stateful or one.type == "ReadFile" for one in operations)
    return not has_state and all(is_fixed(one) for one in sources)


def in_order(dataset: Any) -> Any:
    """Return the pipeline with one order on every worker, and after a restart."""
    options = tf.data.Options()
    options.deterministic = True
    return dataset.with_options(options)


def in_time(dataset: Any) -> Any:
    """Return the pipeline without what TensorFlow itself reads ahead at its end."""
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


class Rereading:
    """Reads again what was trained before a restart, and reports how far it is, and how long it takes.

    `total` are the batches of all that has to be read. `advice` ends the line.
    """

    def __init__(
        self,
        total: int,
        progress: ProgressFile,
        advice: str,
        tell: Callable[[str], None] = announce,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._done, self._is_told = total, 0, False
        self._progress, self._advice, self._tell, self._clock = progress, advice, tell, clock
        self._began = clock()

    def read(self, iterator: Any, count: int) -> int:
        """Read and drop up to `count` batches; return how many there were."""
        before, found = self._progress.last.state, 0
        for _ in itertools.islice(iterator, count):
            found += 1
            self._done += 1
            self._progress.update(state="rereading", reread_batches=self._done)
            seconds = self._clock() - self._began
            if not self._is_told and seconds > _SECONDS_WORTH_TELLING:
                self._is_told = True
                left = seconds / self._done * max(self._total - self._done, 0)
                self._tell(
                    f"reading the {self._total:,} batches again that were trained before the restart: "
                    f"{self._done:,} took {seconds:.1f} s, the others take about {left:.0f} s{self._advice}"
                )
        self._progress.update(state=before, reread_batches=None)
        return found


# The order in which a worker reads the parts of the training data.
#
# All workers take the same number of examples a step. If one part is smaller than another, its examples
# would come more often, and count more. So every worker then continues with the next part after each part:
# it reads every example once before any example comes again.


NEARLY_EQUAL = 0.01
"""If the parts' sizes differ by no more than this fraction, each worker reads only its own part."""


@dataclass(frozen=True)
class Place:
    """A position in parts that are read one after the other, again and again.

    All parts have been read `cycle` times, then `turn` of them, and `offset` examples of the next one.
    """

    cycle: int
    turn: int
    offset: int


def are_nearly_equal(sizes: Sequence[int]) -> bool:
    """Return whether the largest part is at most `NEARLY_EQUAL` larger than the smallest."""
    return max(sizes) <= min(sizes) * (1 + NEARLY_EQUAL)


def turns(sizes: Sequence[int], worker: int) -> list[int]:
    """Return the parts that a worker reads, in order: only its own, or all of them from its own on."""
    if are_nearly_equal(sizes):
        return [worker]
    return [(worker + turn) % len(sizes) for turn in range(len(sizes))]


def place_of(sizes: Sequence[int], position: int) -> Place:
    """Return the place after `position` examples of parts of these sizes, read in this order."""
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
_ONE_TO_ONE = {
    *("MapDataset", "ParallelMapDataset", "PrefetchDataset", "ShuffleDataset", "OptionsDataset"),
    *("AssertCardinalityDataset", "DenseToRaggedDataset"),
}
"""TensorFlow's names of stages that return one element for each input element."""
_BATCHES = {"BatchDataset", "ParallelBatchDataset", "PaddedBatchDataset"}


@dataclass(frozen=True)
class TrainingData:
    """Unbatched examples that the user's function returned, and their number; None if they are endless."""

    dataset: Any
    examples: int | None


def measure(dataset: Any, name: str) -> TrainingData:
    """Count the examples, as `count` does, and refuse data without any."""
    data = count(dataset, name)
    refuse_empty(data, name)
    return data


def count(dataset: Any, name: str) -> TrainingData:
    """Check and count the examples; read them once if TensorFlow does not know their number."""
    check_examples(dataset, name)
    examples = int(dataset.cardinality())
    if examples == tf.data.INFINITE_CARDINALITY:
        return TrainingData(dataset, None)
    if examples == tf.data.UNKNOWN_CARDINALITY:
        announce(f"counting the examples of {name}(); `tf.data.experimental.assert_cardinality` saves that")
        examples = count_elements(dataset)
    return TrainingData(dataset, examples)


def count_elements(dataset: Any) -> int:
    """Count the elements by reading the earliest stage that tells their number."""
    stage = equally_many(dataset)
    if kind_of(stage) in _BATCHES:
        rows, size = count_elements(*stage._inputs()), int(stage._batch_size)
        return rows // size if bool(stage._drop_remainder) else -(-rows // size)
    return int(stage.reduce(tf.constant(0, tf.int64), as_written(lambda total, *_: total + 1)))


def equally_many(dataset: Any) -> Any:
    """Return the earliest stage of a pipeline with as many elements: counting needs no later stage.

    Decoding images takes far longer than reading them.
    """
    while kind_of(dataset) in _ONE_TO_ONE:
        (dataset,) = dataset._inputs()
    return dataset


def earliest_of_length(dataset: Any) -> Any:
    """Return the stage that `count_elements` reads."""
    stage = equally_many(dataset)
    return earliest_of_length(*stage._inputs()) if kind_of(stage) in _BATCHES else stage


def refuse_empty(data: TrainingData, name: str) -> None:
    """Refuse data without any example."""
    if data.examples == 0:
        raise InvalidConfiguration(f"{name}() has no examples")


def check_examples(dataset: Any, name: str) -> None:
    """Refuse data that is no tf.data set, is already batched, or has shapes of unknown rank."""
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
    """Return the examples from a place on: one data set after the other, again and again.

    The examples before the place's offset are read and dropped. An endless data set is the only one. If
    examples are shuffled, each pass has another order, and so has each worker's `part`.
    """
    if turns[0].examples is None:
        return turns[0].dataset.skip(place.offset)

    def one_pass(data: TrainingData, number: Any) -> Any:
        if not shuffle:
            return data.dataset
        # This holds in the traced function only. The order must not depend on TensorFlow's global seed,
        # which the user may set anywhere, and which must not be 0 if the other seed is a tensor.
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


def worker_batches(stream: Any, *, workers: int, worker: int, batch: int) -> Any:
    """Return this worker's share, in full batches of one device each, declared endless.

    For a data set that may end, TensorFlow asks all workers before each step whether there is more.
    """
    share = stream.shard(workers, worker).batch(batch, drop_remainder=True)
    endless = share.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return in_order(endless).prefetch(tf.data.AUTOTUNE)


def shared_out(strategy: Any, of_worker: Callable[[Any], Any]) -> Any:
    """Call `distribute_datasets_from_function` for data that is read `read_on_cpu`."""
    return read_on_cpu(strategy, strategy.distribute_datasets_from_function(of_worker))


def read_on_cpu(strategy: Any, shared: Any) -> Any:
    """Let a strategy's data be read without an iterator over devices if a worker has only a CPU.

    TensorFlow's iterator over several devices traces three functions at each creation (30 to 60 ms), and
    makes a remote call for each batch (0.15 ms). A GPU needs it: it copies a batch to the device ahead.
    """
    is_split = isinstance(shared, tf.distribute.DistributedDataset)  # false with a single device
    devices = list(strategy.extended.worker_devices) if is_split else []
    if len(devices) == 1 and "CPU" in devices[0] and getattr(shared, "_options", ...) is None:
        shared._options = tf.distribute.InputOptions(
            experimental_fetch_to_device=False,
            experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
        )
    return shared


def shuffle_buffer(data: TrainingData) -> int:
    """Return how many examples are held for shuffling: all of them, or as many as fit in `SHUFFLE_BYTES`."""
    size = max(1, example_bytes(data.dataset.element_spec))
    return max(1, min(data.examples or SHUFFLE_BYTES, SHUFFLE_BYTES // size))


def example_bytes(spec: Any) -> int:
    """Return the bytes of one example by its static shape; a guess for parts whose size varies."""
    return sum(_part_bytes(part) for part in tf.nest.flatten(spec))


def _part_bytes(part: Any) -> int:
    shape = getattr(part, "shape", None)
    if shape is None or not shape.is_fully_defined() or part.dtype == tf.string:
        return _UNKNOWN_EXAMPLE_BYTES
    return int(math.prod(shape.as_list()) * part.dtype.size)


def _looks_batched(spec: Any) -> bool:
    """Return whether every component, the label too, has an open first dimension, as after `.batch(n)`."""
    shapes = [getattr(part, "shape", None) for part in tf.nest.flatten(spec)]
    return bool(shapes) and all(
        shape is not None and shape.rank is not None and shape.rank > 0 and shape[0] is None
        for shape in shapes
    )
