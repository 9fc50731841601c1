"""The data of Keras's `fit`, `evaluate` and `predict`: its rows, its order, and the calls that take it.

All workers read the same batches in the same order, and each cuts its own rows out of each batch. This is
TensorFlow's sharding policy DATA, but exact for batches that the number of devices doesn't divide: losses and
metrics count by rows, and each row once (`shares`). In a prediction, a last batch of fewer rows than
devices is filled up with rows moved from the previous batch, so that each device has a row. With the policy
FILE and a known number of steps, each worker trains on its own files. With HINT and OFF, TensorFlow's
sharding stays unchanged.

Keras calls TensorFlow once per batch (`steps_per_execution`). Here a call of a `fit` takes as many batches as
fit in half a second, unless a callback of the script asks for batches: then it gets Keras's calls.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow.trainer import TFEpochIterator

from trainjob_trainer.distribution.collective import gather, is_collective
from trainjob_trainer.distribution.strategy import is_mirrored
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.keras.pipelines import Part as WorkerPart
from trainjob_trainer.keras.pipelines import (
    Rereading,
    Reshuffle,
    as_written,
    count_elements,
    depends_on_script,
    earliest_of_length,
    in_order,
    is_fixed,
    kind_of,
    pass_over,
    read_on_cpu,
    reshuffles,
    shared_out,
    whole_passes,
)
from trainjob_trainer.keras.pipelines import part_of as part_of_worker
from trainjob_trainer.keras.same_rows import SameRows
from trainjob_trainer.keras.shares import Part
from trainjob_trainer.reporting.progress import announce, notice
from trainjob_trainer.session import current_session, is_seeded_by_user, job_seed

UNEQUAL_ROWS = "trainjob: unequal rows"
"""The text of an error of TensorFlow, of which `trainer.errors_explained` makes a sentence."""

# Rows of batched data sets: joined, and cut into parts.


def has_rows(dataset: Any) -> bool:
    """Return whether the elements are batches, which have rows."""
    return any(map(_has_rows, tf.nest.flatten(dataset.element_spec)))


def static_batch_size(dataset: Any) -> int | None:
    """Return the rows of a full batch, or None if the data set does not define them."""
    for spec in tf.nest.flatten(dataset.element_spec):
        if _has_rows(spec) and spec.shape[0] is not None:
            return int(spec.shape[0])
    try:
        from tensorflow.python.data.experimental.ops import distribute  # noqa: PLC0415 - private: may be gone

        size = int(distribute.compute_batch_size(dataset))
    except Exception:  # noqa: BLE001 - it only serves messages and figures
        return None
    return size if size > 0 else None


def are_equal(dataset: Any, parts: int) -> bool:
    """Return whether each batch is known to have equal parts, as with `drop_remainder=True`."""
    sizes = [spec.shape[0] for spec in tf.nest.flatten(dataset.element_spec) if _has_rows(spec)]
    return parts == 1 or all(size is not None and size % parts == 0 for size in sizes)


def fill_rest(dataset: Any, least: int) -> Any:
    """Fill up a last batch of fewer than `least` rows, with rows moved from the previous batch.

    The number of batches stays. Only the last batch may be smaller than the others. Batches of unequal width
    can't be joined; then some parts of the last batch have no rows. Only dense tensors are filled up.
    """
    specs = tf.nest.flatten(dataset.element_spec)
    dense = all(isinstance(spec, tf.TensorSpec) and _has_rows(spec) for spec in specs)
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

    def cut(components: Any, number: Any) -> Any:
        # tf.data passes a tuple as several arguments.
        batch = components if isinstance(dataset.element_spec, tuple) else components[0]
        counts = [_count(one) for one in tf.nest.flatten(batch) if _has_rows(one)]
        is_equal = tf.reduce_all(tf.equal(counts, counts[0]))
        with tf.control_dependencies([tf.debugging.Assert(is_equal, [UNEQUAL_ROWS])] if of > 1 else []):
            total = tf.identity(counts[0])
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
        only = as_written(lambda *components: cut(components, first))
        return dataset.map(only, num_parallel_calls=tf.data.AUTOTUNE if reads_ahead else None)
    numbers = tf.data.Dataset.range(first, first + count)

    @as_written
    def parts_of(*components: Any) -> Any:
        return numbers.map(as_written(lambda number: cut(components, number)))

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


_WITH_ROWS = (
    *(tf.Tensor, tf.RaggedTensor, tf.SparseTensor),
    *(tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec),
)


def _has_rows(component: Any) -> bool:
    """Return whether a component of a batch, or its spec, has rows."""
    return isinstance(component, _WITH_ROWS) and bool(component.shape.rank)


def _count(batch: Any) -> Any:
    first = next(value for value in tf.nest.flatten(batch) if _has_rows(value))
    return first.nrows() if isinstance(first, tf.RaggedTensor) else tf.shape(first, out_type=tf.int64)[0]


def _sliced(batch: Any, start: Any, end: Any) -> Any:
    def of(value: Any) -> Any:
        if isinstance(value, tf.SparseTensor):
            width = value.dense_shape[1:]
            begin = tf.concat([[start], tf.zeros_like(width)], axis=0)
            return tf.sparse.slice(value, begin, tf.concat([[end - start], width], axis=0))
        return value[start:end] if _has_rows(value) else value

    return tf.nest.map_structure(of, batch)


# The batches of one call.


@dataclass
class Batches:
    """What Keras's loop passes on as the iterator: the data, and how many batches the call takes.

    Attributes:
        is_seen: a callback looks at the metrics, so they must be those of all workers.
        most: how many of the batches one TensorFlow call may take.
        is_open: nobody knows where the data ends; the workers read each batch together, before its step.
        at_end: is called once if it ends here.
    """

    iterator: Any
    count: int
    is_seen: bool = False
    most: int = sys.maxsize
    is_open: bool = False
    at_end: Callable[[], None] | None = None

    def __iter__(self) -> Batches:
        """Return itself: Keras reads a first batch to learn the shapes."""
        return self

    def __next__(self) -> Any:
        return next(self.iterator)

    def in_calls(self, most: int = sys.maxsize) -> list[tuple[Any, int]]:
        """Return the data of each TensorFlow call, and how many batches it takes of them, up to `most`.

        Data is an iterator, or a list of one batch if it is open; raises StopIteration at its end.
        """
        if self.is_open:
            read = list(itertools.islice(self.iterator, self.count))
            if not read:
                if self.at_end:
                    self.at_end()
                raise StopIteration
            return [([one], 1) for one in read]
        most = min(self.most, most)
        return [(self.iterator, min(most, self.count - done)) for done in range(0, self.count, most)]


BY_PAIRS = "yield step, iterator" in inspect.getsource(TFEpochIterator._enumerate_iterator)
EVALUATION_BATCHES = 32
"""Batches per call of an evaluation if no callback looks at them."""
_SAYS_EPOCH = (
    "; TRAIN_RESUME_DATA=epoch reads only those of the current epoch, whose rows then differ from a run "
    "without the restart"
)


class JobEpochs(TFEpochIterator):  # type: ignore[misc,unused-ignore]
    """Keras's iterator over the epochs of one data set.

    Attributes:
        trains: for `fit`: Keras passes class weights there alone, and labels to all but `predict`.
        size: rows of a full global batch; None if neither adapter nor data set defines them.
        pipeline: the script's tf.data pipeline, by FILE this worker's part of it; None for other data.
        stages: those of the pipeline that make an epoch's order depend on the epochs before.
        reopens: Keras makes another iterator at an epoch's end, and doesn't read it.
        files: this worker's files, by FILE; `why_by_rows` says why not.
        rows: compares what the workers read, if each reads all of it.
        is_endless: one iterator serves all epochs, since a new one takes as long as a short epoch.
        is_open: nobody knows where the data ends, so Keras makes the calls.
        reads_ahead: what the pipeline returns doesn't depend on what the script does meanwhile.
        others_at_end: how many batches at an epoch's end may have another shape than those before.
    """

    steps_per_epoch: Any
    _num_batches: Any
    _current_iterator: Any

    def __init__(self, distribute_strategy: Any = None, *args: Any, **kwargs: Any) -> None:
        super(TFEpochIterator, self).__init__(*args, **kwargs)
        self._distribute_strategy = strategy = distribute_strategy
        self.trains, self._predicts = "class_weight" in kwargs, "y" not in kwargs
        self._is_mirrored, self._replicas = is_mirrored(strategy), strategy.num_replicas_in_sync
        self.pipeline: Any = None
        self.files: Any = None
        self.rows: SameRows | None = None
        self.size: int | None = None
        self.stages: list[Reshuffle] = []
        self.is_endless = self.reopens = False
        self.reads_ahead, self.others_at_end = True, 0.0
        self._drawn: Any = None
        with self._arrays_in_order() as needs_iterators:
            dataset = self.data_adapter.get_tf_dataset()
        self._distributed_dataset = dataset  # as the script has shared it out, unless it is ours to do
        session = current_session()
        call = session.call
        if self.trains and call is not None:
            call.data = self
        is_pipeline = isinstance(dataset, tf.data.Dataset)
        if is_pipeline:
            dataset = self._prepared(in_order(dataset), needs_iterators=needs_iterators)
        self.is_open = self._is_mirrored and not (self.steps_per_epoch or self._num_batches)
        if self.trains and self.files is None:
            self.others_at_end = _others_at_end(self.data_adapter)
        if is_pipeline:
            self._distributed_dataset = self._distributed(dataset)

    def _prepared(self, dataset: Any, *, needs_iterators: bool) -> Any:
        """Return the pipeline, with its length if that has to be counted; note what its order depends on."""
        adapter, session = self.data_adapter, current_session()
        call, collective = session.call, is_collective(self._distribute_strategy)
        try:
            size = adapter.batch_size
        except Exception:  # noqa: BLE001 - adapters answer for what they know
            size = None
        self.size = size if isinstance(size, int) and size > 0 else static_batch_size(dataset)
        why_by_rows = why_not_by_file(self, dataset, self.size) if self.trains and collective else ""
        if why_by_rows is None:
            self.files = self._own_files(dataset)
        if self.trains and call is not None:
            call.batch_size = self.size
        is_tf = type(adapter).__name__ == "TFDatasetAdapter"
        if is_tf:
            self.pipeline = dataset if self.files is None else self.files
            found = reshuffles(dataset)
            is_sharded = found and self.files is not None
            self.stages = [Reshuffle(self.files, 1, at_once=True)] if is_sharded else found
            self.reopens = bool(self._num_batches and not self.steps_per_epoch)
        reads_batches = self.steps_per_epoch or (call is not None and call.seen.batches)
        self.reads_ahead = not (self.trains and reads_batches and depends_on_script(dataset))
        if self.files is None and collective and not self.steps_per_epoch:
            is_open = is_tf and int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY
            # Not where reading would be noticed: by a generator, or a `shuffle()` that counts its passes.
            if is_open and not (depends_on_script(dataset) or reshuffles(earliest_of_length(dataset))):
                announce(
                    "counting the batches of a data set; `tf.data.experimental.assert_cardinality` saves that"
                )
                length = tf.data.experimental.assert_cardinality(count_elements(dataset))
                dataset = adapter._dataset = dataset.apply(length)
            self._num_batches = adapter.num_batches
        policies = tf.data.experimental.AutoShardPolicy
        chosen = dataset.options().experimental_distribute.auto_shard_policy
        self._is_ours = chosen in (policies.AUTO, policies.DATA, policies.FILE) and has_rows(dataset)
        if self.trains and collective and session.is_writer and session.task.num_workers > 1:
            workers = f"each of {session.task.num_workers} workers"
            if not self._is_ours:
                reads = "TensorFlow shares it among the workers, by its auto_shard_policy"
            elif self.files is not None:
                reads = f"{workers} reads files of its own, and begins them again at their end"
            else:
                reads = f"{workers} reads all of it and takes its rows of each batch"
                reads += f" ({why_by_rows})" if why_by_rows else ""
            _tell_once(f"training data: {reads}")
        if self.trains and self._is_mirrored and call is not None and call.executions is not None:
            # Only arrays and fixed pipelines can't change between two epochs.
            is_array = type(adapter).__name__ == "ArrayDataAdapter"
            is_same = is_array or (self.pipeline is not None and is_fixed(dataset))
            is_known = self._num_batches is not None and not (self.steps_per_epoch or needs_iterators)
            self.is_endless = is_known and is_same and self.files is None and self._is_ours
        if not self.trains:
            return self._bounded(dataset, 1)
        return dataset if call is None else self._bounded(dataset, call.epochs - call.epoch)

    @contextlib.contextmanager
    def _arrays_in_order(self) -> Iterator[bool]:
        """Have Keras shuffle arrays by seed, `fit` and epoch in the block, so workers and restarts agree.

        A script that seeds TensorFlow itself keeps Keras's order, which is the same in every epoch: each has
        a new iterator, which begins with the seed. Yields whether it can't be had otherwise.
        """
        adapter = self.data_adapter
        is_seeded = is_seeded_by_user(importlib.import_module("tensorflow.python.eager.context"))
        shuffles = adapter._shuffle if type(adapter).__name__ == "ArrayDataAdapter" else False
        if not shuffles or (is_seeded and shuffles == "batch"):
            yield bool(shuffles)
            return
        if not is_seeded:
            with tf.init_scope(), tf.device("/CPU:0"):
                self._drawn = tf.Variable(0, dtype=tf.int64, trainable=False)

        def draw(value: Any, seed: Any = None, name: Any = None) -> Any:
            del seed, name
            if self._drawn is not None:
                key = [tf.constant(job_seed(), tf.int64), self._drawn.assign_add(1) - 1]
                return tf.random.experimental.stateless_shuffle(value, key)
            seed, further = tf.compat.v1.random.get_seed(None)
            shuffle = functools.partial(tf.raw_ops.RandomShuffle, seed=seed, seed2=further)
            with tf.init_scope():  # the first draw, as a constant for each new read of the data set
                numbers = tf.data.Dataset.from_tensors(tf.range(value.shape[0], dtype=value.dtype))
                return next(iter(numbers.map(as_written(lambda one: shuffle(value=one)))))

        original, tf.random.shuffle = tf.random.shuffle, draw
        try:
            yield False
        finally:
            tf.random.shuffle = original

    def _get_iterator(self) -> Any:
        call = current_session().call
        if call is not None and call.data is self:
            if self._drawn is not None:  # an iterator that serves several epochs counts on by itself
                number = call.kept.iterators if self.steps_per_epoch else call.epoch
                self._drawn.assign(call.number * 2**32 + number)
            call.kept.iterators += 1
        if self.rows is not None:
            self.rows.begin(call.epoch if call is not None else 0)
        return self._distributed_dataset

    def _bounded(self, dataset: Any, epochs: int, before: int = 0) -> Any:
        """Return a pipeline that isn't read beyond its use, and so doesn't begin a pass that isn't needed.

        A `shuffle()` before `repeat()` counts its passes. If `epochs` end with one, a later `fit` on the data
        would depend on how far each worker had read ahead. `before` is read before the first of the epochs.
        """
        if not self.steps_per_epoch or all(one.passes for one in self.stages):
            return dataset
        while kind_of(dataset) == "PrefetchDataset":
            (dataset,) = dataset._inputs()
        calls = -(-self.steps_per_epoch // self.steps_per_execution)
        return dataset.take(before + epochs * calls * self.steps_per_execution)

    def _distributed(self, dataset: Any) -> Any:
        """Distribute the data set, so that each worker reads its own part."""
        strategy, replicas, task = self._distribute_strategy, self._replicas, current_session().task
        if not self._is_mirrored or not self._is_ours:
            return read_on_cpu(strategy, strategy.experimental_distribute_dataset(dataset))
        if self.files is None:
            is_array = type(self.data_adapter).__name__ == "ArrayDataAdapter"
            rest = (self.data_adapter.partial_batch_size or self.size) if is_array else None
            is_enough = (rest or 0) >= replicas
            whole = dataset.repeat() if self.is_endless else dataset
            if task.num_workers > 1 and current_session().setting("compare_data"):
                steps = self.steps_per_epoch or self._num_batches or 0
                self.rows = SameRows(strategy, task, of_epoch=steps)
                whole = self.rows.hashed(whole)
            if self._predicts and not is_enough:
                whole = fill_rest(whole, replicas)
            if self.size and rest:
                are_unequal = bool(self.size % replicas or rest % replicas)
            else:
                are_unequal = not are_equal(dataset, replicas)
            weighed = are_unequal and not self._predicts

        def own(context: Any) -> Any:
            local = replicas // context.num_input_pipelines
            if self.files is not None:
                mine = self.files.repeat().rebatch(self.size // replicas, drop_remainder=True)
            else:
                mine = part(
                    whole,
                    first=context.input_pipeline_id * local,
                    count=local,
                    of=replicas,
                    weighed=weighed,
                    fills=weighed and not is_enough,
                    reads_ahead=self.reads_ahead,
                )
            # Keras counts the batches and stops at the last one. Where their number isn't known, TensorFlow
            # has all workers agree before each batch on whether there is one.
            if not self.is_open:
                mine = mine.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
            if self.reads_ahead:
                return mine.prefetch(tf.data.AUTOTUNE)
            options = tf.data.Options()  # TensorFlow itself would read ahead at the end
            options.experimental_optimization.inject_prefetch = False
            return mine.with_options(options)

        return shared_out(strategy, own)

    def _own_files(self, dataset: Any) -> Any:
        """Return the batches of one worker's files, which it reads again and again, so that none runs out.

        All workers call it together. The data then has a number of steps and no end. Raises
        InvalidConfiguration if a worker has no file.
        """
        task, adapter = current_session().task, self.data_adapter
        try:
            own, first = (shard(one, part_of_worker(task)) for one in (dataset, earliest_of_length(dataset)))
            finds = int(any(True for _ in first.take(1)))
        except tf.errors.OpError:
            finds = 0
        found = zip(task.trainees, gather(self._distribute_strategy, task, finds))
        without = [name for name, has_some in found if not has_some]
        if without:
            raise InvalidConfiguration(
                f"auto_shard_policy is FILE, and {', '.join(without)} found no file of the training data "
                "(TensorFlow knows TFRecordDataset, TextLineDataset and FixedLengthRecordDataset): write it "
                "to as many files as there are workers, on a volume that all see, or leave the policy out; "
                "then each reads all of it and takes its rows"
            )
        self.steps_per_epoch = self.steps_per_epoch or adapter.num_batches
        adapter._dataset = adapter._dataset.apply(
            tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        )
        self._num_batches = adapter.num_batches
        return own

    # The calls of an epoch.

    def _enumerate_iterator(self) -> Iterator[tuple[Any, ...]]:
        """Yield the calls of an epoch: numbers of the first and the last batch, and the data.

        Older versions of Keras number a call by one of its batches; callbacks then get the last one's number.
        """
        call = current_session().call
        trains = call if self.trains else None
        if trains is not None:
            self._go_on(trains)
        steps = self.steps_per_epoch or self._num_batches or 0
        is_ours = self._is_mirrored
        if not is_ours or self.is_open:
            yield from self._calls_of_keras(call, trains, is_ours=is_ours)
            return
        self.data_adapter.on_epoch_begin()
        if self._current_iterator is None or not (self.steps_per_epoch or self.is_endless):
            self._current_iterator, self._steps_seen = iter(self._get_iterator()), 0
        for first, last, batches in self._calls(steps, call):
            yield (last, batches) if BY_PAIRS else (first, last, batches)
        if self._num_batches and self._steps_seen >= self._num_batches:
            self._steps_seen = 0
            if self.steps_per_epoch:
                self._current_iterator = iter(self._get_iterator())
            # Keras makes an iterator at the end of data whose length it knows, and doesn't read it: only a
            # `shuffle()` notices, which counts its iterators.
            if self.reopens:
                pass_over(self.stages, 0, 1)
                if trains is not None:
                    trains.kept.iterators += 1
        self.data_adapter.on_epoch_end()

    def _calls_of_keras(self, call: Any, trains: Any, *, is_ours: bool) -> Iterator[tuple[Any, ...]]:
        """Yield Keras's own calls, without those that an earlier attempt has made, which are read if need be.

        Under a strategy it is data whose end isn't known before it is reached.
        """
        passed = trains.batches_before if trains is not None else 0
        count, rows = self.steps_per_execution, self.rows
        done, is_read = passed // count * count, bool(self.steps_per_epoch)
        at_end = functools.partial(rows.compare, is_end=True) if rows else None
        for *numbers, data in super()._enumerate_iterator():
            if numbers[0] + count <= passed:
                if not is_read and rereading(passed).read(data, done) < done:
                    return  # data of unknown length, whose last call got fewer batches
                is_read = True
                continue
            if not is_ours or self._predicts:
                yield (*numbers, data)
                continue
            is_seen = self._is_seen(call)
            yield (*numbers, Batches(data, count, is_seen, is_open=True, at_end=at_end))
            if rows:
                rows.take(count, is_end=self._steps_seen == self._num_batches)  # known from the first epoch

    def _is_seen(self, call: Any) -> bool:
        """Return whether a callback looks at the metrics of each call; outside `fit` that isn't asked."""
        return call is None or (call.seen.batches if self.trains else call.sees_tests)

    def _calls(self, steps: int, call: Any) -> Iterator[tuple[int, int, Any]]:
        """Yield the calls of an epoch of `steps` batches.

        If somebody may look at them, a call has the numbers that Keras gives it: `steps_per_execution` of
        them, even if fewer batches are left. An epoch of `steps_per_epoch` ends with a whole call, as in
        Keras.
        """
        is_seen, rows, trains = self._is_seen(call), self.rows, call if self.trains else None
        whole = self.steps_per_execution
        step, total = trains.batches_before if trains else 0, -(-steps // whole) * whole
        if trains and step:
            if not self.steps_per_epoch:
                rereading(step).read(self._current_iterator, step)
                if rows:
                    rows.take(step)
            self._steps_seen += step
        while step < total:
            left = (self._num_batches or math.inf) - self._steps_seen
            if left <= 0:
                if self.steps_per_epoch and step < steps:
                    self._interrupted_warning()
                break
            left = most = int(min(left, total - step))
            if trains and trains.gathers:
                # Within one call TensorFlow gathers rows of the first batch's shape (measured with 2.21).
                most = int(max(1, left - self.others_at_end))
            count, numbers = min(left, whole), whole
            if trains and trains.executions is not None:
                every, done = trains.every, current_session().step
                until_due = every - done % every if every else most
                count = numbers = trains.executions.next_call(min(most, until_due))
            elif not (self.trains or self._predicts or is_seen):
                count = numbers = min(left, EVALUATION_BATCHES)
            self._steps_seen += count
            batches: Any = Batches(self._current_iterator, count, is_seen, most)
            if self._predicts:
                batches = itertools.islice(self._current_iterator, count)
            yield step, step + numbers - 1, batches
            step += numbers
            if rows:
                rows.take(count, is_end=step >= total or self._steps_seen == self._num_batches)

    # After a restart.

    def replay(self, call: Any, validation: Any, validation_steps: int | None, *, goes_on: bool) -> None:
        """Bring the data of a call of `fit` to where an earlier attempt left it.

        If it goes on, the iterator in use is left to `_go_on`.
        """
        for _ in call.kept.epochs:
            self.data_adapter.on_epoch_begin()
            self.data_adapter.on_epoch_end()
        passes = -(-call.kept.iterators // 2) if self.reopens else call.kept.iterators
        _replay(call, self.pipeline, self.stages, passes, call.kept.iterators - passes)
        if call.kept.taken and not goes_on:
            _replay(call, self.pipeline, self.stages, 1, most=call.kept.taken)
        if isinstance(validation, tf.data.Dataset):
            length = int(validation.cardinality())
            opened = call.kept.validations if 0 < length <= (validation_steps or length) else 0
            _replay(call, validation, reshuffles(validation), call.kept.validations, opened, validation_steps)

    def _go_on(self, call: Any) -> None:
        """Before the first epoch after a restart, bring an iterator of several epochs to where it was."""
        taken, call.kept.taken = call.kept.taken, 0
        if not (taken and self.steps_per_epoch) or self._current_iterator is not None:
            return
        found: list[Reshuffle] = []
        passes, rest = 0, taken
        if self.pipeline is not None and self.files is None:
            found, passes, rest = whole_passes(self.pipeline, taken)
        if call.rereads == "epoch" and rest > self.steps_per_epoch:
            _begin_anew(found or self.stages, call.epoch)
            taken = rest = call.batches_before
        else:
            pass_over(found, passes)
        bounded = self._bounded(self.pipeline, call.epochs - call.epoch, rest - call.batches_before)
        if bounded is not self.pipeline:
            self._distributed_dataset = self._distributed(bounded)
        iterator = iter(self._get_iterator())
        rereading(rest, _SAYS_EPOCH if rest > self.steps_per_epoch else "").read(iterator, rest)
        if self.rows:
            self.rows.take(rest)
        self._current_iterator, self._steps_seen = iterator, taken - call.batches_before


def _replay(
    call: Any, dataset: Any, stages: list[Reshuffle], passes: int, opened: int = 0, most: int | None = None
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
    reading = rereading(passes * length, _SAYS_EPOCH)
    for number in range(passes):
        reading.read(iter(dataset), length or sys.maxsize)
        if number < opened:
            iter(dataset)


def _begin_anew(stages: list[Reshuffle], passes: int) -> None:
    """Let the data begin again, in another order than at first."""
    pass_over([Reshuffle(one.stage, 1, at_once=True) for one in stages], passes)
    if current_session().is_writer:
        notice(
            "TRAIN_RESUME_DATA=epoch: the training data begins again with the current epoch, so the rows "
            "from here on differ from a run without the restart"
        )


def rereading(total: int, advice: str = "") -> Rereading:
    """Return what reads `total` batches again that an earlier attempt has taken; the writer says so."""
    session = current_session()
    return Rereading(total, session.progress, advice, announce if session.is_writer else lambda _: None)


def of_one_replica(spec: Any) -> Any:
    """Return the spec of one device's part; None if a device may get nothing."""
    components = getattr(spec, "_component_specs", None)
    if type(spec).__name__ == "PerReplicaSpec" and components:
        spec = components[0]
    return None if type(spec).__name__ == "OptionalSpec" else spec


def _others_at_end(adapter: Any) -> float:
    """Return how many batches at an epoch's end may have another shape than those before them."""
    kind = type(adapter).__name__
    if kind == "ArrayDataAdapter":
        is_ragged = any(type(one).__name__ == "RaggedTensor" for one in tf.nest.flatten(adapter._inputs))
        return math.inf if is_ragged else float(bool(adapter.has_partial_batch))
    if kind != "TFDatasetAdapter":
        return math.inf
    specs = [of_one_replica(one) for one in tf.nest.flatten(adapter.get_tf_dataset().element_spec)]
    are_known = all(hasattr(one, "shape") and one.shape.is_fully_defined() for one in specs)
    return 0.0 if are_known else math.inf


def why_not_by_file(epochs: Any, dataset: Any, size: int | None) -> str | None:
    """Return why each worker reads all of the data, the empty string if the script wants that; else None."""
    policies = tf.data.experimental.AutoShardPolicy
    chosen = dataset.options().experimental_distribute.auto_shard_policy
    if chosen != policies.FILE or not has_rows(dataset):
        return ""
    specs = tf.nest.flatten(dataset.element_spec)
    replicas = epochs._distribute_strategy.num_replicas_in_sync
    if not (epochs.steps_per_epoch or epochs.data_adapter.num_batches):
        return "auto_shard_policy FILE needs steps_per_epoch"
    if not all(
        isinstance(one, tf.TensorSpec) and _has_rows(one) and one.shape[1:].is_fully_defined()
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


_tell_once = functools.cache(announce)
"""Logs a sentence once, even if a script trains on the same data several times."""
