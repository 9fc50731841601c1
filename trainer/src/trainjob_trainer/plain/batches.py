"""The part of each global batch that a worker takes under Keras's own `fit`, `evaluate` and `predict`.

All workers read the same batches in the same order, and each cuts its own rows out of each batch. This is
TensorFlow's sharding policy DATA, but exact for batches that the number of devices doesn't divide: losses and
metrics count by rows, and each row once (`replica_share`). In a prediction, a last batch of fewer rows than
devices is filled up with rows moved from the previous batch, so that each device has a row. With the policy
FILE and a known number of steps, each worker trains on its own files. With HINT and OFF, TensorFlow's
sharding stays unchanged.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import tensorflow as tf

from trainjob_trainer.data.batches import Part as WorkerPart
from trainjob_trainer.data.batches import (
    Rereading,
    Reshuffle,
    as_written,
    count_elements,
    depends_on_script,
    earliest_of_length,
    in_order,
    in_time,
    is_fixed,
    kind_of,
    pass_over,
    read_on_cpu,
    reshuffles,
    shared_out,
    whole_passes,
)
from trainjob_trainer.data.batches import part_of as part_of_worker
from trainjob_trainer.data.same_rows import SameRows
from trainjob_trainer.distribution.collective import gather, is_collective
from trainjob_trainer.distribution.strategy import is_mirrored
from trainjob_trainer.engine.replica_share import Part, count_as_in_one_process
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.plain.calls import UNEQUAL_ROWS, Use
from trainjob_trainer.plain.fit_call import FitCall, ScriptCall
from trainjob_trainer.plain.process import current_process, is_seeded_by_user, job_seed
from trainjob_trainer.recipe import from_environment
from trainjob_trainer.reporting.progress import announce, notice

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


def part(
    dataset: Any,
    *,
    first: int,
    count: int,
    of: int,
    weighed: bool = False,
    fills: bool = False,
    reads_ahead: bool = True,
) -> Any:
    """Return parts `first` to `first + count - 1`, from 0, of each batch cut into `of`, one element each.

    With `weighed`, an element is a `Part`. With `fills`, it always has rows (see `part_of`), and knows
    whether an earlier part has them too.
    """

    def cut(batch: Any, number: Any) -> Any:
        with tf.control_dependencies([_check_rows(batch)] if of > 1 else []):
            total = tf.identity(_count(batch))
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
        return dataset.map(only, num_parallel_calls=tf.data.AUTOTUNE if reads_ahead else None)
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


def _check_rows(batch: Any) -> Any:
    """Return an operation that fails unless all components have equally many rows."""
    counts = [_count(one) for one in tf.nest.flatten(batch) if _has_own_rows(one)]
    return tf.debugging.Assert(tf.reduce_all(tf.equal(counts, counts[0])), [UNEQUAL_ROWS])


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
        base_init(self, *args, **kwargs)
        self._distribute_strategy = distribute_strategy
        self._trainjob_order = Order()
        with self._trainjob_order.applied_to(self.data_adapter):
            dataset = self.data_adapter.get_tf_dataset()
        self._trainjob_files = self._trainjob_rows = self._trainjob_pipeline = None
        self._trainjob_stages = []
        self._trainjob_endless = self._trainjob_reopens = False
        self._trainjob_reads_ahead = True
        self._distributed_dataset = dataset  # as the script has shared it out, unless it is ours to do
        call = current_process().call
        if self._trainjob_use is Use.FIT and call is not None:
            call.data = self
        if isinstance(dataset, tf.data.Dataset):
            dataset = _prepared(self, in_order(dataset))
        self._trainjob_is_open = is_mirrored(distribute_strategy) and not (
            self.steps_per_epoch or self._num_batches
        )
        if isinstance(dataset, tf.data.Dataset):
            self._distributed_dataset = _distributed(self, dataset)

    @functools.wraps(base_get)
    def _get_iterator(self: Any) -> Any:
        call = current_process().call
        if call is not None and call.data is self:
            self._trainjob_order.begin(call.number, call.iterators if self.steps_per_epoch else call.epoch)
            call.iterators += 1
        if self._trainjob_rows is not None:
            self._trainjob_rows.begin(call.epoch if call is not None else 0)
        return base_get(self)

    iterator.__init__ = __init__
    iterator._get_iterator = _get_iterator
    iterator._trainjob_go_on, iterator._trainjob_reopen = _go_on, _reopen
    iterator._trainjob_rereading = staticmethod(_rereading)


def _prepared(epoch: Any, dataset: Any) -> Any:
    """Return the data set, with its length if that has to be counted; note what its order depends on."""
    collective, process = is_collective(epoch._distribute_strategy), current_process()
    training, call = epoch._trainjob_use is Use.FIT, process.call
    size = _size_of(epoch.data_adapter, dataset)
    epoch._trainjob_files = files = own_files(epoch, dataset, size) if collective else None
    if training and call is not None:
        call.batch_size = size
    if type(epoch.data_adapter).__name__ == "TFDatasetAdapter":
        epoch._trainjob_pipeline = dataset if files is None else files
        found = reshuffles(dataset)
        is_sharded = found and files is not None
        epoch._trainjob_stages = [Reshuffle(files, 1, at_once=True)] if is_sharded else found
        epoch._trainjob_reopens = bool(epoch._num_batches and not epoch.steps_per_epoch)
    reads_batches = epoch.steps_per_epoch or (call is not None and call.seen.batches)
    epoch._trainjob_reads_ahead = not (training and reads_batches and depends_on_script(dataset))
    if files is None and collective and not epoch.steps_per_epoch:
        dataset = _counted(epoch.data_adapter, dataset)
        epoch._num_batches = epoch.data_adapter.num_batches
    if training and collective and process.is_writer and process.task.num_workers > 1:
        _tell_once(_sentence(epoch, dataset, size))
    epoch._trainjob_endless = (
        training and is_mirrored(epoch._distribute_strategy) and _may_go_on(epoch, dataset)
    )
    if training and call is None:
        return dataset
    return _bounded(epoch, dataset, call.epochs - call.epoch if training and call is not None else 1)


class Order:
    """The order of arrays: a function of seed, `fit` and epoch, so workers and restarts agree.

    A script that seeds TensorFlow itself keeps Keras's order, which is the same in every epoch: each has a
    new iterator, which begins with the seed. `needs_iterators` says that it can't be had otherwise.
    """

    def __init__(self) -> None:
        self.needs_iterators = False
        self._epoch: Any = None

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

    def begin(self, fit: int, number: int) -> None:
        """Set the order of the next iterator; one that serves several epochs counts on by itself."""
        if self._epoch is not None:
            self._epoch.assign(fit * 2**32 + number)


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

    Only arrays and fixed pipelines can't change between two epochs.
    """
    call = current_process().call
    is_known = call is not None and call.executions is not None and not epoch.steps_per_epoch
    is_known = is_known and epoch._num_batches is not None and not epoch._trainjob_order.needs_iterators
    is_array = type(epoch.data_adapter).__name__ == "ArrayDataAdapter"
    is_same = is_array or (epoch._trainjob_pipeline is not None and is_fixed(dataset))
    return is_known and is_same and epoch._trainjob_files is None and _is_ours_to_share(dataset)


def _bounded(epoch: Any, dataset: Any, epochs: int, before: int = 0) -> Any:
    """Return a pipeline that isn't read beyond its use, and so doesn't begin a pass that isn't needed.

    A `shuffle()` before `repeat()` counts its passes. If `epochs` end with one, a later `fit` on the data
    would depend on how far each worker had read ahead. `before` is read before the first of the epochs.
    """
    if not epoch.steps_per_epoch or all(one.passes for one in epoch._trainjob_stages):
        return dataset
    while kind_of(dataset) == "PrefetchDataset":
        (dataset,) = dataset._inputs()
    calls = -(-epoch.steps_per_epoch // epoch.steps_per_execution)
    return dataset.take(before + epochs * calls * epoch.steps_per_execution)


def _reopen(epoch: Any) -> None:
    """Make the iterator that Keras makes at the end of data whose length it knows.

    It isn't read, so only a `shuffle()` notices: it counts its iterators.
    """
    call = current_process().call
    if epoch._trainjob_reopens:
        pass_over(epoch._trainjob_stages, 0, 1)
        if call is not None and call.data is epoch:
            call.iterators += 1


_SAYS_EPOCH = (
    "; TRAIN_RESUME_DATA=epoch reads those of the epoch under way alone, whose rows are others then than "
    "without the restart"
)


def replay(call: ScriptCall, validation: Any, validation_steps: int | None, *, goes_on: bool) -> None:
    """Bring the data of a call of `fit` to where an earlier attempt left it.

    If it goes on, the iterator in use is left to `_go_on`.
    """
    data = call.data
    for _ in call.epochs_run:
        data.data_adapter.on_epoch_begin()
        data.data_adapter.on_epoch_end()
    passes = -(-call.iterators // 2) if data._trainjob_reopens else call.iterators
    _replay(call, data._trainjob_pipeline, data._trainjob_stages, passes, call.iterators - passes)
    if call.taken and not goes_on:
        _replay(call, data._trainjob_pipeline, data._trainjob_stages, 1, most=call.taken)
    if isinstance(validation, tf.data.Dataset):
        length = int(validation.cardinality())
        opened = call.validations if 0 < length <= (validation_steps or length) else 0
        _replay(call, validation, reshuffles(validation), call.validations, opened, validation_steps)


def _replay(
    call: FitCall,
    dataset: Any,
    stages: list[Reshuffle],
    passes: int,
    opened: int = 0,
    most: int | None = None,
) -> None:
    """Bring a pipeline's order to where it is after some passes, each of `most` batches or all of them."""
    found, whole, rest = whole_passes(dataset, most) if most and stages else ([], 0, 0)
    if found:
        stages, passes = found, passes * (whole + bool(rest))
    if pass_over(stages, passes, opened):
        return
    if call.rereads == "epoch":
        _begin_anew(stages, passes)
        return
    length = most or max(int(dataset.cardinality()), 0)
    rereading = _rereading(passes * length, _SAYS_EPOCH)
    for number in range(passes):
        rereading.read(iter(dataset), length or sys.maxsize)
        if number < opened:
            iter(dataset)


def _begin_anew(stages: list[Reshuffle], passes: int) -> None:
    """Let the data begin again, in another order than at first."""
    pass_over([Reshuffle(one.stage, 1, at_once=True) for one in stages], passes)
    if current_process().is_writer:
        notice(
            "TRAIN_RESUME_DATA=epoch: the training data begins again with the epoch under way, so the rows "
            "from here on are others than without the restart"
        )


def _rereading(total: int, advice: str = "") -> Rereading:
    process = current_process()
    return Rereading(total, process.progress, advice, announce if process.is_writer else lambda _: None)


def _go_on(epoch: Any, call: FitCall) -> None:
    """Before the first epoch after a restart, bring an iterator of several epochs to where it was."""
    taken, call.taken = call.taken, 0
    if not (taken and epoch.steps_per_epoch) or epoch._current_iterator is not None:
        return
    found: list[Reshuffle] = []
    passes, rest = 0, taken
    if isinstance(epoch._trainjob_pipeline, tf.data.Dataset) and epoch._trainjob_files is None:
        found, passes, rest = whole_passes(epoch._trainjob_pipeline, taken)
    if call.rereads == "epoch" and rest > epoch.steps_per_epoch:
        _begin_anew(found or epoch._trainjob_stages, call.epoch)
        taken = rest = call.batches_before
    else:
        pass_over(found, passes)
    bounded = _bounded(epoch, epoch._trainjob_pipeline, call.epochs - call.epoch, rest - call.batches_before)
    if bounded is not epoch._trainjob_pipeline:
        epoch._distributed_dataset = _distributed(epoch, bounded)
    iterator = iter(epoch._get_iterator())
    _rereading(rest, _SAYS_EPOCH if rest > epoch.steps_per_epoch else "").read(iterator, rest)
    if epoch._trainjob_rows:
        epoch._trainjob_rows.take(rest)
    epoch._current_iterator, epoch._steps_seen = iterator, taken - call.batches_before


def _distributed(epoch: Any, dataset: Any) -> Any:
    """Distribute the data set, so that each worker reads its own part."""
    strategy = epoch._distribute_strategy
    if not is_mirrored(strategy) or not _is_ours_to_share(dataset):
        return read_on_cpu(strategy, strategy.experimental_distribute_dataset(dataset))
    replicas = strategy.num_replicas_in_sync
    files, size = epoch._trainjob_files, _size_of(epoch.data_adapter, dataset)
    whole = _by_rows(epoch, dataset) if files is None else None

    def own(context: Any) -> Any:
        local = replicas // context.num_input_pipelines
        if whole is None:
            mine = files.repeat().rebatch(size // replicas, drop_remainder=True)
        else:
            mine = whole(context.input_pipeline_id * local, local)
        # Keras counts the batches and stops at the last one. Where their number isn't known, TensorFlow has
        # all workers agree before each batch on whether there is one.
        if not epoch._trainjob_is_open:
            mine = mine.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        return mine.prefetch(tf.data.AUTOTUNE) if epoch._trainjob_reads_ahead else in_time(mine)

    return shared_out(strategy, own)


def _by_rows(epoch: Any, dataset: Any) -> Callable[[int, int], Any]:
    """Return a function that cuts the parts of `count` devices, from device `first` on, out of each batch."""
    replicas, size = epoch._distribute_strategy.num_replicas_in_sync, _size_of(epoch.data_adapter, dataset)
    is_enough = (_smallest_of_arrays(epoch.data_adapter, size) or 0) >= replicas
    predicts = epoch._trainjob_use is Use.PREDICT
    whole = dataset.repeat() if epoch._trainjob_endless else dataset
    task = current_process().task
    if task.num_workers > 1 and from_environment("compare_data", os.environ, True):
        steps = epoch.steps_per_epoch or epoch._num_batches or 0
        epoch._trainjob_rows = SameRows(epoch._distribute_strategy, task, of_epoch=steps)
        whole = epoch._trainjob_rows.hashed(whole)
    if predicts and not is_enough:
        whole = fill_rest(whole, replicas)
    weighed = not predicts and _are_weighed(epoch.data_adapter, dataset, size, replicas)
    fills = weighed and not is_enough
    return lambda first, count: part(
        whole,
        first=first,
        count=count,
        of=replicas,
        weighed=weighed,
        fills=fills,
        reads_ahead=epoch._trainjob_reads_ahead,
    )


# The policy FILE: each worker reads its own files, again and again, so that none runs out of rows.


def own_files(epoch: Any, dataset: Any, size: int | None) -> Any:
    """Return the batches of one worker's files, if the script trains by FILE; else None.

    All workers call it together. `epoch` then has a number of steps and no end. Raises InvalidConfiguration
    if a worker has no file.
    """
    if epoch._trainjob_use is not Use.FIT or why_by_rows(epoch, dataset, size) is not None:
        return None
    strategy, task = epoch._distribute_strategy, current_process().task
    try:
        sharded, first = (shard(one, part_of_worker(task)) for one in (dataset, earliest_of_length(dataset)))
        finds = int(any(True for _ in first.take(1)))
    except tf.errors.OpError:
        finds = 0
    without = [name for name, found in zip(task.trainees, gather(strategy, task, finds)) if not found]
    if without:
        raise InvalidConfiguration(
            f"auto_shard_policy is FILE, and {', '.join(without)} found no file of the training data "
            "(TensorFlow knows TFRecordDataset, TextLineDataset and FixedLengthRecordDataset): write it to "
            "as many files as there are workers, on a volume that all see, or leave the policy out; then "
            "each reads all of it and takes its rows"
        )
    adapter = epoch.data_adapter
    epoch.steps_per_epoch = epoch.steps_per_epoch or adapter.num_batches
    adapter._dataset = adapter._dataset.apply(
        tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    )
    epoch._num_batches = adapter.num_batches
    return sharded


def is_by_file(dataset: Any) -> bool:
    """Return whether the user chose that each worker reads its own files."""
    policies = tf.data.experimental.AutoShardPolicy
    chosen = dataset.options().experimental_distribute.auto_shard_policy
    return chosen == policies.FILE and has_rows(dataset)


def why_by_rows(epoch: Any, dataset: Any, size: int | None) -> str | None:
    """Return why each worker reads all of the data, the empty string if the script wants that; else None."""
    if not is_by_file(dataset):
        return ""
    specs = tf.nest.flatten(dataset.element_spec)
    replicas = epoch._distribute_strategy.num_replicas_in_sync
    if not (epoch.steps_per_epoch or epoch.data_adapter.num_batches):
        return "auto_shard_policy FILE needs steps_per_epoch"
    if not all(
        isinstance(one, tf.TensorSpec) and _is_batched(one) and one.shape[1:].is_fully_defined()
        for one in specs
    ):
        return "auto_shard_policy FILE needs rows of one shape"
    if not size or size % replicas:
        return f"auto_shard_policy FILE needs batches that {replicas} devices divide"
    return None


def shard(dataset: Any, part: WorkerPart) -> Any:
    """Return the pipeline on one worker's files; raises tf.errors.OpError if TensorFlow finds no files."""
    specs = [
        one if isinstance(one, tf.TensorSpec) else tf.TensorSpec([], tf.variant)
        for one in tf.nest.flatten(dataset.element_spec)
    ]
    variant = tf.raw_ops.AutoShardDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        num_workers=part.count,
        index=part.index,
        auto_shard_policy=tf.data.experimental.AutoShardPolicy.FILE.value,
        num_replicas=part.count,
        output_types=[one.dtype for one in specs],
        output_shapes=[one.shape for one in specs],
    )
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


@functools.cache
def _tell_once(sentence: str) -> None:
    """Log it once, even if a script trains on the same data several times."""
    announce(sentence)


def _sentence(epoch: Any, dataset: Any, size: int | None) -> str:
    """Return the log line on what each worker reads."""
    workers = f"each of {current_process().task.num_workers} workers"
    if not _is_ours_to_share(dataset):
        return "training data: TensorFlow shares it among the workers, by its auto_shard_policy"
    if epoch._trainjob_files is not None:
        return f"training data: {workers} reads files of its own, and begins them again at their end"
    reason = why_by_rows(epoch, dataset, size)
    return f"training data: {workers} reads all of it and takes its rows of each batch" + (
        f" ({reason})" if reason else ""
    )


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
    """Return a pipeline with a known number of batches; read it once to count them if necessary.

    It stays unknown where reading would be noticed: by a generator, or a `shuffle()` that counts its passes.
    """
    if type(adapter).__name__ != "TFDatasetAdapter" or not isinstance(dataset, tf.data.Dataset):
        return dataset
    if int(dataset.cardinality()) != tf.data.UNKNOWN_CARDINALITY:
        return dataset
    if depends_on_script(dataset) or reshuffles(earliest_of_length(dataset)):
        return dataset
    announce("counting the batches of a data set; `tf.data.experimental.assert_cardinality` saves that")
    count = count_elements(dataset)
    adapter._dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    return adapter._dataset


def _is_ours_to_share(dataset: Any) -> bool:
    policies = tf.data.experimental.AutoShardPolicy
    chosen = dataset.options().experimental_distribute.auto_shard_policy
    return chosen in (policies.AUTO, policies.DATA, policies.FILE) and has_rows(dataset)
