"""The part of each global batch that a worker takes under Keras's own `fit`, `evaluate` and `predict`.

All workers read the same batches in the same order, and each cuts its own rows out of each batch. This is
TensorFlow's sharding policy DATA, but exact for batches that the number of devices doesn't divide: losses and
metrics count by rows, and each row once (`replica_share`). In a prediction, a last batch of fewer rows than
devices is filled up with rows moved from the previous batch, so that each device has a row. With the policy
FILE, each worker trains and evaluates on its own files (`file_shards`). With HINT and OFF, TensorFlow's
sharding stays unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

from trainjob_trainer.data.batches import (
    as_written,
    count_elements,
    read_on_cpu,
    reorders_itself,
    shared_out,
)
from trainjob_trainer.data.batches import part_of as part_of_worker
from trainjob_trainer.distribution.collective import is_collective
from trainjob_trainer.distribution.strategy import is_mirrored
from trainjob_trainer.engine.replica_share import Part, count_as_in_one_process
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.plain import file_shards
from trainjob_trainer.plain.calls import Shapes, Use, read_over
from trainjob_trainer.plain.fit_call import FitCall
from trainjob_trainer.plain.process import current_process, is_seeded_by_user, job_seed
from trainjob_trainer.reporting.progress import announce

# Rows of batched data sets: joined, and cut into parts.


def has_rows(dataset: Any) -> bool:
    """Return whether the elements are batches, which have rows."""
    return any(_is_batched(spec) for spec in tf.nest.flatten(dataset.element_spec))


def static_batch_size(dataset: Any) -> int | None:
    """Return the rows of a full batch, or None if the data set does not define them."""
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
    """Return whether each batch is known to have equal parts, as with `drop_remainder=True`."""
    sizes = [spec.shape[0] for spec in tf.nest.flatten(dataset.element_spec) if _is_batched(spec)]
    return parts == 1 or all(size is not None and size % parts == 0 for size in sizes)


def fill_rest(dataset: Any, least: int) -> Any:
    """Fill up a last batch of fewer than `least` rows, with rows moved from the previous batch.

    The number of batches stays. Only the last batch may be smaller than the others. Batches of unequal width
    can't be joined; then some parts of the last batch have no rows. Only dense tensors are filled up.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    dense = all(isinstance(spec, tf.TensorSpec) and _is_batched(spec) for spec in specs)
    if least == 1 or not dense or all(spec.shape[0] is not None for spec in specs):
        return dataset
    nothing = tf.nest.map_structure(
        lambda spec: tf.zeros([0, *(size or 0 for size in spec.shape[1:])], spec.dtype), dataset.element_spec
    )

    @as_written
    def hold_back(held: Any, batch: Any) -> Any:
        rows, before = _count(batch), _count(held)
        pairs = zip(tf.nest.flatten(held), tf.nest.flatten(batch))
        are_of_one_width = [tf.reduce_all(tf.shape(a)[1:] == tf.shape(b)[1:]) for a, b in pairs]
        is_rest = (rows > 0) & (rows < least) & (before > 0) & tf.reduce_all(are_of_one_width)
        missing = tf.where(is_rest, tf.minimum(least - rows, before), 0)
        moved = _sliced(held, before - missing, before)
        filled = tf.cond(
            is_rest,
            lambda: tf.nest.map_structure(lambda *rows: tf.concat(rows, axis=0), moved, batch),
            lambda: batch,
        )
        return filled, _sliced(held, 0, before - missing)

    end = tf.data.Dataset.from_tensors(nothing)
    return dataset.concatenate(end).scan(nothing, hold_back).skip(1)


def part(dataset: Any, *, first: int, count: int, of: int, weighed: bool = False, fills: bool = False) -> Any:
    """Return parts `first` to `first + count - 1`, from 0, of each batch cut into `of`, one element each.

    With `weighed`, an element is a `Part`. With `fills`, it always has rows (see `part_of`), and knows
    whether an earlier part has them too.
    """

    def cut(batch: Any, number: Any) -> Any:
        total = _count(batch)
        begin, end, copies = total * number // of, total * (number + 1) // of, 1
        if fills:
            begin, end, copies = part_of(total, number, of)
        rows = _sliced(batch, begin, end)
        if not weighed:
            return rows
        share = tf.cast(end - begin, tf.float32) / tf.cast(total * copies, tf.float32)
        if not fills:
            return Part(rows, share)
        is_first = total * (number - 1) // of < begin
        return Part(rows, share, tf.stack([tf.cast(one, tf.float32) for one in (copies, is_first)]))

    if of == 1 and not weighed:
        return dataset
    if count == 1:
        only = as_written(lambda *batch: cut(_element(dataset, batch), first))
        return dataset.map(only, num_parallel_calls=tf.data.AUTOTUNE)
    numbers = tf.data.Dataset.range(first, first + count)

    @as_written
    def parts_of(*batch: Any) -> Any:
        return numbers.map(as_written(lambda number: cut(_element(dataset, batch), number)))

    return dataset.flat_map(parts_of)


def part_of(total: Any, number: Any, of: int) -> tuple[Any, Any, Any]:
    """Return where part `number`, from 0, begins and ends, and how many parts have the same rows.

    With fewer rows than parts, but at least one, each part is one row, and some parts have the same row.
    """
    begin = total * number // of
    later = total * (number + 1) // of
    is_empty = later == begin
    end = later + (is_empty if isinstance(is_empty, bool) else tf.cast(is_empty, later.dtype))
    copies = -(-(begin + 1) * of // total) + (-begin * of // total)
    return begin, end, copies


def _element(dataset: Any, parts: Any) -> Any:
    """Return the element: tf.data passes a tuple as several arguments."""
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


def share_batches(trainer: ModuleType) -> None:
    """Replace how `TFEpochIterator` of `keras.src.backend.tensorflow.trainer` distributes a data set.

    Also replace what losses and gradients are scaled by.
    """
    count_as_in_one_process(trainer)
    iterator: Any = trainer.TFEpochIterator
    if hasattr(iterator.__init__, "__wrapped__"):
        return
    base_init = super(iterator, iterator).__init__
    base_get = iterator._get_iterator

    @functools.wraps(iterator.__init__)
    def __init__(  # noqa: N807 - it takes the place of one
        self: Any, distribute_strategy: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        self._trainjob_use = Use.of(kwargs)
        training = self._trainjob_use is Use.FIT
        collective = is_collective(distribute_strategy)
        base_init(self, *args, **kwargs)
        self._distribute_strategy = distribute_strategy
        self._trainjob_order = Order()
        with self._trainjob_order.applied_to(self.data_adapter):
            dataset = self.data_adapter.get_tf_dataset()
        size = _size_of(self.data_adapter, dataset)
        self._trainjob_files = OwnFiles.of(self, dataset, size) if collective else None
        if training and _is_reordered(self, dataset):
            files = self._trainjob_files
            self._trainjob_order.follow(dataset if files is None else files.sharded)
        call = current_process().call
        if training and call is not None:
            call.batch_size = size
        if self._trainjob_files is not None:
            self._trainjob_files.declare_length(self)
        elif collective and not self.steps_per_epoch:
            dataset = _counted(self.data_adapter, dataset)
            self._num_batches = self.data_adapter.num_batches
        is_ours = is_mirrored(distribute_strategy)
        self._trainjob_is_open = is_ours and not (self.steps_per_epoch or self._num_batches)
        is_for_writer = training and current_process().is_writer and current_process().task.num_workers > 1
        if is_for_writer and collective and (call is None or call.reads_over):  # the library says it itself
            _tell_once(_sentence(self, dataset))
        self._trainjob_endless = training and is_ours and _may_go_on(self, dataset)
        self._distributed_dataset = _distributed(self, dataset, size)

    @functools.wraps(base_get)
    def _get_iterator(self: Any) -> Any:
        # With `steps_per_epoch`, Keras makes the next iterator at the end of the epoch that exhausted one.
        self._trainjob_order.begin_epoch(bool(self.steps_per_epoch and self._current_iterator is not None))
        return base_get(self)

    iterator.__init__ = __init__
    iterator._get_iterator = _get_iterator
    iterator._trainjob_go_on = _go_on


class Order:
    """The order of training examples: a function of seed, `fit` and epoch, so workers and restarts agree.

    A script that seeds TensorFlow itself keeps Keras's order. For arrays, this order is the same in every
    epoch: each epoch has a new iterator, which begins with the seed. A `shuffle()` in a pipeline continues
    with each iterator; Keras makes two iterators per epoch and uses the first. `needs_iterators` says whether
    an epoch's order requires a new iterator.
    """

    def __init__(self) -> None:
        self.needs_iterators = False
        self._epoch: Any = None
        self._reordered: Any = None
        self._made = 0
        call = current_process().call
        self.first = call.epoch if call is not None else 0

    @contextlib.contextmanager
    def applied_to(self, adapter: Any) -> Iterator[None]:
        """Apply this order to the data set that Keras builds from arrays within the `with` block."""
        is_seeded = is_seeded_by_user(importlib.import_module("tensorflow.python.eager.context"))
        shuffles = type(adapter).__name__ == "ArrayDataAdapter" and adapter._shuffle
        self.needs_iterators = is_seeded and shuffles == "batch"
        if not shuffles or self.needs_iterators:
            yield
            return
        if not is_seeded:
            with tf.init_scope(), tf.device("/CPU:0"):
                self._epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
        original = tf.random.shuffle
        tf.random.shuffle = first_draw if is_seeded else self._draw
        try:
            yield
        finally:
            tf.random.shuffle = original

    def _draw(self, value: Any, seed: Any = None, name: Any = None) -> Any:
        del seed, name
        number = self._epoch.assign_add(1) - 1
        return tf.random.experimental.stateless_shuffle(value, [tf.constant(job_seed(), tf.int64), number])

    def follow(self, dataset: Any) -> None:
        """Follow a pipeline that reorders itself: advance it as Keras does in one process."""
        self._reordered, self.needs_iterators = dataset, True

    def begin_epoch(self, later: int = 0) -> None:
        """Set the order of the next iterator, which counts its further epochs itself.

        Its first epoch is `later` epochs after the current one, or before it if `later` is negative.
        """
        call = current_process().call
        if call is None:
            return
        if self._epoch is not None:
            self._epoch.assign(call.number * 2**32 + call.epoch + later)
        passed = call.epoch - self.first
        if self._reordered is not None:
            for _ in range(2 * passed - self._made):
                iter(self._reordered)
            self._made = max(self._made, 2 * passed) + 1


def first_draw(value: Any) -> Any:
    """Return the first draw of `tf.random.shuffle` as a constant, for each new read of the data set."""
    seed, further = tf.compat.v1.random.get_seed(None)
    with tf.init_scope():
        numbers = tf.data.Dataset.from_tensors(tf.range(value.shape[0], dtype=value.dtype))
        drawn = numbers.map(
            as_written(lambda one: tf.raw_ops.RandomShuffle(value=one, seed=seed, seed2=further))
        )
        return next(iter(drawn))


def _size_of(adapter: Any, dataset: Any) -> int | None:
    """Return the rows of a full global batch; None if neither adapter nor data set defines them."""
    try:
        size = adapter.batch_size
    except Exception:  # noqa: BLE001 - adapters answer for what they know
        size = None
    return size if isinstance(size, int) and size > 0 else static_batch_size(dataset)


def _may_go_on(epoch: Any, dataset: Any) -> bool:
    """Return whether one iterator can serve all epochs: a new one takes as long as a short epoch.

    Data made in Python gets a call at each epoch's end, and may change then.
    """
    call = current_process().call
    is_known = call is not None and call.executions is not None
    is_known = is_known and not (epoch.steps_per_epoch or epoch._trainjob_is_open)
    kind = type(epoch.data_adapter).__name__
    is_known = is_known and not epoch._trainjob_order.needs_iterators and epoch._trainjob_files is None
    return is_known and kind in ("ArrayDataAdapter", "TFDatasetAdapter") and _is_ours_to_share(dataset)


def _is_reordered(epoch: Any, dataset: Any) -> bool:
    """Return whether it is a user's pipeline that is read in a new order for each epoch."""
    adapter, files = epoch.data_adapter, epoch._trainjob_files
    if type(adapter).__name__ != "TFDatasetAdapter" or not reorders_itself(dataset):
        return False
    if files is not None:
        return files.plan.steps is not None
    return adapter.num_batches is not None and not epoch.steps_per_epoch


def _go_on(epoch: Any, call: FitCall) -> None:
    """Before the first epoch after a restart, bring the data to where this epoch began."""
    passed = call.epoch - epoch._trainjob_order.first
    goes_on = call.reads_over and call.midway[0] == call.epoch and epoch._current_iterator is None
    if passed <= 0 or not goes_on:
        return
    for _ in range(passed):
        epoch.data_adapter.on_epoch_begin()
        epoch.data_adapter.on_epoch_end()
    if not epoch.steps_per_epoch:
        return
    steps = -(-epoch.steps_per_epoch // epoch.steps_per_execution) * epoch.steps_per_execution
    renewals, served = standing_after(passed, steps, epoch._num_batches)
    if type(epoch.data_adapter).__name__ == "TFDatasetAdapter":
        pipeline = epoch.data_adapter.get_tf_dataset()
        for _ in range(renewals if reorders_itself(pipeline) else 0):
            iter(pipeline)
    if not served:
        return
    if current_process().is_writer:
        announce(f"the {served * steps:,} batches that were trained before the restart are read over")
    epoch._trainjob_order.begin_epoch(-served)
    with contextlib.suppress(tf.errors.OutOfRangeError):  # then Keras had made a new iterator
        found = iter(epoch._distributed_dataset)
        read_over(served * steps, found)
        epoch._current_iterator, epoch._steps_seen = found, served * steps


def standing_after(epochs: int, steps: int, batches: int | None) -> tuple[int, int]:
    """Return how often Keras has renewed the data's iterator, and how many epochs the current one has served.

    An epoch takes `steps` steps, or fewer if the data ends after its `batches`; None: no end is known.
    """
    return divmod(epochs, -(-batches // steps)) if batches else (0, epochs)


def _distributed(epoch: Any, dataset: Any, size: int | None) -> Any:
    """Distribute the data set, so that each worker reads its own part."""
    strategy = epoch._distribute_strategy
    if isinstance(dataset, tf.distribute.DistributedDataset):
        return dataset
    if not is_mirrored(strategy) or not _is_ours_to_share(dataset):
        return read_on_cpu(strategy, strategy.experimental_distribute_dataset(dataset))
    replicas = strategy.num_replicas_in_sync
    files = epoch._trainjob_files
    whole = _by_rows(epoch, dataset, size) if files is None else None

    def own(context: Any) -> Any:
        local = replicas // context.num_input_pipelines
        mine = files.taken() if whole is None else whole(context.input_pipeline_id * local, local)
        # Keras counts the batches and stops at the last one. Where their number isn't known, TensorFlow has
        # all workers agree before each batch on whether there is one.
        if not epoch._trainjob_is_open:
            mine = mine.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        return mine.prefetch(tf.data.AUTOTUNE)

    return shared_out(strategy, own)


def _by_rows(epoch: Any, dataset: Any, size: int | None) -> Callable[[int, int], Any]:
    """Return a function that cuts the parts of `count` devices, from device `first` on, out of each batch."""
    replicas = epoch._distribute_strategy.num_replicas_in_sync
    is_enough = (_smallest_of_arrays(epoch.data_adapter, size) or 0) >= replicas
    predicts = epoch._trainjob_use is Use.PREDICT
    whole = fill_rest(dataset, replicas) if predicts and not is_enough else dataset
    weighed = not predicts and _are_weighed(epoch.data_adapter, dataset, size, replicas)
    fills = weighed and not is_enough
    if epoch._trainjob_endless:
        whole = whole.repeat()
    return lambda first, count: part(
        whole, first=first, count=count, of=replicas, weighed=weighed, fills=fills
    )


class OwnFiles:
    """Data of which each worker reads its own files; `sharded` has the script's batches from them."""

    def __init__(self, sharded: Any, plan: file_shards.Plan, devices: int, sentence: str) -> None:
        self.sharded, self.plan, self.sentence = sharded, plan, sentence
        self._devices = devices

    @classmethod
    def of(cls, epoch: Any, dataset: Any, size: int | None) -> OwnFiles | None:
        """Return the data if the user chose FILE for training; else None. All workers call it together.

        Evaluated and predicted rows are shared out of batches that each worker reads. Raises
        InvalidConfiguration if the data set can't be trained on in this way.
        """
        if epoch._trainjob_use is not Use.FIT or not file_shards.is_by_file(dataset) or not has_rows(dataset):
            return None
        own = part_of_worker(current_process().task)
        specs = tf.nest.flatten(dataset.element_spec)
        dense = all(isinstance(one, tf.TensorSpec) and _is_batched(one) for one in specs)
        batch = size if dense and all(one.shape[1:].is_fully_defined() for one in specs) else None
        is_endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
        try:
            sharded = file_shards.shard(dataset, own)
        except tf.errors.OpError as error:
            raise InvalidConfiguration(file_shards.NO_FILES) from error
        is_counted = not (epoch.steps_per_epoch or epoch.data_adapter.num_batches or is_endless)
        found = _exchange(epoch, dataset, file_shards.count_files(sharded), batch, is_counted)
        devices = epoch._distribute_strategy.num_replicas_in_sync // own.count
        plan = found.plan(own, devices)
        return cls(sharded, plan, devices, found.sentence(plan.steps, reorders=reorders_itself(dataset)))

    @property
    def shapes(self) -> Shapes:
        """The shapes of the devices' batches; the same on all workers, since their calls must be equal."""
        if self.plan.sizes is None:
            return Shapes.UNKNOWN
        return Shapes.EQUAL if self.plan.steps is None else Shapes.LAST_SMALLER

    def declare_length(self, epoch: Any) -> None:
        """Set the number of steps per epoch for Keras."""
        adapter = epoch.data_adapter
        if self.plan.steps is None:
            epoch.steps_per_epoch = epoch.steps_per_epoch or adapter.num_batches
        length = tf.data.INFINITE_CARDINALITY if self.plan.steps is None else self.plan.steps
        adapter._dataset = adapter._dataset.apply(tf.data.experimental.assert_cardinality(length))
        epoch._num_batches = adapter.num_batches

    def taken(self) -> Any:
        """Return the batches of the worker's devices, one after the other."""
        plan, devices = self.plan, self._devices
        if plan.sizes is not None:
            batches = file_shards.joined(self.sharded, plan, devices)
            if plan.shares is not None:
                batches = batches.map(as_written(Part))
        else:
            replicas = devices * current_process().task.num_workers
            source = self.sharded if plan.steps is not None else self.sharded.repeat()
            batches = part(source, first=0, count=replicas, of=replicas, fills=True)
            batches = batches if plan.steps is None else batches.take(plan.steps * devices)
        return batches


def _exchange(
    epoch: Any, dataset: Any, lists: list[int] | None, batch: int | None, is_counted: bool
) -> file_shards.Found:
    """Exchange the numbers that the workers find in their files."""
    from trainjob_trainer.distribution.collective import gather_all  # noqa: PLC0415 - needs all of Keras

    task = current_process().task
    own, unknown = part_of_worker(task), file_shards.UNKNOWN
    is_enough = lists is None or min(lists) >= own.count
    files = unknown if lists is None else sum(lists) if is_enough else min(lists)
    count = unknown
    if is_counted and is_enough:
        announce("counting the records of this worker's files; `steps_per_epoch` saves that")
        if batch is None:
            count = file_shards.count_batches(dataset, own)
        else:
            count = file_shards.count_rows(dataset, own, batch, _count)
    mine = [files, unknown if lists is None else file_shards.files_of(lists, own), count]
    all_files, all_reads, counts = zip(*gather_all(epoch._distribute_strategy, task, mine))
    return file_shards.Found(all_files, all_reads, counts, batch)


@functools.cache
def _tell_once(sentence: str) -> None:
    """Log it once, even if a script trains on the same data several times."""
    announce(sentence)


def _sentence(epoch: Any, dataset: Any) -> str:
    """Return the log line on what each worker reads."""
    if epoch._trainjob_files is not None:
        return str(epoch._trainjob_files.sentence)
    if not isinstance(dataset, tf.data.Dataset) or not _is_ours_to_share(dataset):
        return "training data: TensorFlow shares it among the workers, by its auto_shard_policy"
    workers = current_process().task.num_workers
    return f"training data: each of {workers} workers reads all of it and takes its rows of each batch"


def _are_weighed(adapter: Any, dataset: Any, size: int | None, replicas: int) -> bool:
    """Return whether batches may have unequal parts."""
    rest = _smallest_of_arrays(adapter, size)
    if size and rest:
        return bool(size % replicas or rest % replicas)
    return not are_equal(dataset, replicas)


def _smallest_of_arrays(adapter: Any, size: int | None) -> int | None:
    """Return the rows of the smallest batch of arrays, the last of an epoch; None for other data."""
    return (adapter.partial_batch_size or size) if type(adapter).__name__ == "ArrayDataAdapter" else None


def _counted(adapter: Any, dataset: Any) -> Any:
    """Return a pipeline with a known number of batches; read it once to count them if necessary."""
    if type(adapter).__name__ != "TFDatasetAdapter" or not isinstance(dataset, tf.data.Dataset):
        return dataset
    if int(dataset.cardinality()) != tf.data.UNKNOWN_CARDINALITY:
        return dataset
    announce("counting the batches of a data set; `tf.data.experimental.assert_cardinality` saves that")
    count = count_elements(dataset)
    adapter._dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    return adapter._dataset


def _is_ours_to_share(dataset: Any) -> bool:
    policies = tf.data.experimental.AutoShardPolicy
    chosen = dataset.options().experimental_distribute.auto_shard_policy
    return chosen in (policies.AUTO, policies.DATA, policies.FILE) and has_rows(dataset)
