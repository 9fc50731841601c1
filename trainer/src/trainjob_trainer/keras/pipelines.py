"""tf.data pipelines: their files, their shuffles, and how to stand after the steps done before a restart."""

from __future__ import annotations

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
    part = part or Part()
    by_record = len(paths) < part.count
    records = tf.data.Dataset.from_tensor_slices(paths if by_record else part.of(paths)).interleave(
        read or tf.data.TFRecordDataset,
        cycle_length=FILES_AT_ONCE,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    if by_record:
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
    while kind_of(stage) in _BATCHES | _ONE_TO_ONE - {"ShuffleDataset"}:
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
                    f"rereading the {self._total:,} batches that were trained before the restart: "
                    f"{self._done:,} took {seconds:.1f} s, the others take about {left:.0f} s{self._advice}"
                )
        self._progress.update(state=before, reread_batches=None)
        return found


# Sizes: of batches, of a shuffle's buffer, and of whole data sets.


SHUFFLE_BYTES = 256 * 2**20
"""Upper bound of the shuffle buffer; data sets up to that size are shuffled perfectly."""
_UNKNOWN_EXAMPLE_BYTES = 64 * 1024
_ONE_TO_ONE = {
    *("MapDataset", "ParallelMapDataset", "PrefetchDataset", "ShuffleDataset", "OptionsDataset"),
    *("AssertCardinalityDataset", "DenseToRaggedDataset"),
}
"""TensorFlow's names of stages that return one element for each input element."""
_BATCHES = {"BatchDataset", "ParallelBatchDataset", "PaddedBatchDataset"}


def count_elements(dataset: Any) -> int:
    """Count the elements by reading `earliest_of_length`."""
    if kind_of(dataset) in _BATCHES:
        rows, size = count_elements(*dataset._inputs()), int(dataset._batch_size)
        return rows // size if bool(dataset._drop_remainder) else -(-rows // size)
    if kind_of(dataset) in _ONE_TO_ONE:
        return count_elements(*dataset._inputs())
    return int(dataset.reduce(tf.constant(0, tf.int64), as_written(lambda total, *_: total + 1)))


def earliest_of_length(dataset: Any) -> Any:
    """Return the earliest stage that tells the number of elements: counting needs no later one.

    Decoding images takes far longer than reading them.
    """
    while kind_of(dataset) in _ONE_TO_ONE | _BATCHES:
        (dataset,) = dataset._inputs()
    return dataset


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


def shuffle_buffer(dataset: Any) -> int:
    """Return how many examples are held for shuffling: all of them, or as many as fit in `SHUFFLE_BYTES`."""
    size = 0
    for part in tf.nest.flatten(dataset.element_spec):
        shape = getattr(part, "shape", None)
        is_known = shape is not None and shape.is_fully_defined() and part.dtype != tf.string
        size += math.prod(part.shape.as_list()) * part.dtype.size if is_known else _UNKNOWN_EXAMPLE_BYTES
    known = int(dataset.cardinality())
    return max(1, min(known if known > 0 else SHUFFLE_BYTES, SHUFFLE_BYTES // max(1, size)))


_CUT_ANEW = {"UnbatchDataset", "FlatMapDataset", "InterleaveDataset", "ParallelInterleaveDataset"}


def batch_size_of(dataset: Any) -> int | None:
    """Return the rows of a full batch, 0 if they aren't known; None for a data set of single examples.

    A static shape doesn't tell: all parts of an example may have the same first dimension.
    """
    stage = dataset
    while stage._inputs() and kind_of(stage) not in _BATCHES | _CUT_ANEW | {"RebatchDataset"}:
        stage = stage._inputs()[0]
    if kind_of(stage) in _BATCHES:
        return int(stage._batch_size)
    shapes = [getattr(part, "shape", None) for part in tf.nest.flatten(dataset.element_spec)]
    are_open = [shape is not None and bool(shape.rank) and shape[0] is None for shape in shapes]
    return 0 if are_open and all(are_open) else None
