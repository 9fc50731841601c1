"""Which part of each global batch a worker takes under Keras's own `fit`, `evaluate` and `predict`.

Every worker reads the same batches in the same order and cuts its own rows out of each: what TensorFlow's
sharding policy DATA means, but exact for batches that the replicas don't divide. In training each replica's
loss counts by its rows (`replica_share`); in evaluation every row counts once, and a last batch of fewer rows
than replicas is filled up from the batch before, so that none goes without. Where the user has chosen another
policy (FILE, HINT, OFF), TensorFlow shards as ever.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from trainjob_trainer.data.seeking import reorders_itself
from trainjob_trainer.engine.replica_share import weigh_losses
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.plain import rows
from trainjob_trainer.plain.calls import Use
from trainjob_trainer.plain.keras_repair import is_collective
from trainjob_trainer.plain.process import current_process
from trainjob_trainer.plain.seeds import is_seeded_by_user, job_seed
from trainjob_trainer.reporting.lines import announce


def share_batches(trainer: ModuleType) -> None:
    """Replace how `TFEpochIterator` of `keras.src.backend.tensorflow.trainer` distributes a data set.

    With it goes how losses are divided, where the parts are of unequal size.
    """
    weigh_losses(trainer.loss_module)
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
        if training and collective and _is_reordered(self, dataset):
            self._trainjob_order.follow(dataset)
        size = _size_of(self.data_adapter, dataset)
        if training and current_process().call is not None:
            current_process().call.batch_size = size  # type: ignore[union-attr]
        if collective and not self.steps_per_epoch:
            dataset = _counted(self.data_adapter, dataset)
            self._num_batches = self.data_adapter.num_batches
        self._trainjob_endless = training and collective and _may_go_on(self, dataset)
        self._distributed_dataset = _distributed(self, dataset, size)
        self._trainjob_resumable = (dataset, size) if training and _is_endless(self, dataset) else None

    @functools.wraps(base_get)
    def _get_iterator(self: Any) -> Any:
        passed = self._trainjob_order.begin_epoch()
        if passed and self._trainjob_resumable is not None and self._current_iterator is None:
            dataset, size = self._trainjob_resumable
            self._distributed_dataset = _distributed(self, _after(self, dataset, passed), size)
        return base_get(self)

    iterator.__init__ = __init__
    iterator._get_iterator = _get_iterator


class Order:
    """The order of training examples: a function of seed, `fit` and epoch. So workers and restarts agree.

    A script that seeds TensorFlow itself keeps Keras's order. Of arrays it is the same in every epoch: each
    has a new iterator, and that begins with the seed. A `shuffle()` in a pipeline goes on with each iterator,
    and Keras makes two for an epoch, of which it uses the first.

    Attributes:
        needs_iterators: whether an epoch's order depends on its iterator being a new one.
    """

    def __init__(self) -> None:
        """No order yet."""
        self.needs_iterators = False
        self._epoch: Any = None
        self._reordered: Any = None
        self._made = 0
        call = current_process().call
        self._first = call.epoch if call is not None else 0

    @contextlib.contextmanager
    def applied_to(self, adapter: Any) -> Iterator[None]:
        """Have the data set that Keras builds meanwhile from arrays shuffled in this order."""
        tf = importlib.import_module("tensorflow")
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
        tf = importlib.import_module("tensorflow")
        number = self._epoch.assign_add(1) - 1
        return tf.random.experimental.stateless_shuffle(value, [tf.constant(job_seed(), tf.int64), number])

    def follow(self, dataset: Any) -> None:
        """Of a pipeline that reorders itself: go on with it as one process does."""
        self._reordered, self.needs_iterators = dataset, True

    def begin_epoch(self) -> int:
        """Choose the order of the iterator that is about to be made; it counts its further epochs itself.

        Returns:
            Epochs that have passed since the script called `fit`, those before a restart included.
        """
        call = current_process().call
        if call is None:
            return 0
        if self._epoch is not None:
            self._epoch.assign(call.number * 2**32 + call.epoch)
        passed = call.epoch - self._first
        if self._reordered is not None:
            for _ in range(2 * passed - self._made):
                iter(self._reordered)
            self._made = max(self._made, 2 * passed) + 1
        return passed


def first_draw(value: Any) -> Any:
    """What `tf.random.shuffle` draws first, here, and thus whenever the data set is read anew."""
    tf = importlib.import_module("tensorflow")
    seed, further = tf.compat.v1.random.get_seed(None)
    with tf.init_scope():
        numbers = tf.data.Dataset.from_tensors(tf.range(value.shape[0], dtype=value.dtype))
        drawn = numbers.map(lambda one: tf.raw_ops.RandomShuffle(value=one, seed=seed, seed2=further))
        return next(iter(drawn))


def _size_of(adapter: Any, dataset: Any) -> int | None:
    """Rows of a full global batch; None where neither Keras's adapter nor the data set says it."""
    try:
        size = adapter.batch_size
    except Exception:  # noqa: BLE001 - adapters answer for what they know
        size = None
    return size if isinstance(size, int) and size > 0 else rows.static_batch_size(dataset)


def _may_go_on(epoch: Any, dataset: Any) -> bool:
    """Whether one iterator can serve all epochs: a new one each time takes a short epoch's time.

    Data that Python makes is told of each epoch's end, and may change then.
    """
    call = current_process().call
    is_known = call is not None and call.pace is not None and not epoch.steps_per_epoch
    kind = type(epoch.data_adapter).__name__
    is_known = is_known and not epoch._trainjob_order.needs_iterators
    return is_known and kind in ("ArrayDataAdapter", "TFDatasetAdapter") and _is_ours_to_share(dataset)


def _is_reordered(epoch: Any, dataset: Any) -> bool:
    """Whether it is a pipeline of the user's, of known length, that is read in another order each time."""
    adapter = epoch.data_adapter
    is_known = adapter.num_batches is not None and not epoch.steps_per_epoch
    return type(adapter).__name__ == "TFDatasetAdapter" and is_known and reorders_itself(dataset)


def _is_endless(epoch: Any, dataset: Any) -> bool:
    """Whether it is a pipeline of the user's without end, of which one iterator serves all epochs."""
    data = importlib.import_module("tensorflow").data
    is_ours = type(epoch.data_adapter).__name__ == "TFDatasetAdapter" and isinstance(dataset, data.Dataset)
    return is_ours and bool(epoch.steps_per_epoch) and dataset.cardinality() == data.INFINITE_CARDINALITY


def _after(epoch: Any, dataset: Any, passed: int) -> Any:
    """What is left of an endless pipeline after a restart."""
    taken = passed * epoch.steps_per_epoch
    if current_process().is_writer:
        announce(f"the {taken:,} batches that were trained before the restart are read over")
    return dataset.skip(taken)


def _distributed(epoch: Any, dataset: Any, size: int | None) -> Any:
    tf = importlib.import_module("tensorflow")
    strategy = epoch._distribute_strategy
    if isinstance(dataset, tf.distribute.DistributedDataset):
        return dataset
    if not is_collective(strategy) or not _is_ours_to_share(dataset):
        return strategy.experimental_distribute_dataset(dataset)
    replicas = strategy.num_replicas_in_sync
    training = epoch._trainjob_use is Use.FIT
    whole = dataset if training else rows.fill_rest(dataset, replicas)
    weighed = training and _are_weighed(epoch.data_adapter, dataset, size, replicas)
    if epoch._trainjob_endless:
        whole = whole.repeat()

    def share(context: Any) -> Any:
        local = replicas // context.num_input_pipelines
        first = context.input_pipeline_id * local
        own = rows.part(whole, first=first, count=local, of=replicas, weighed=weighed)
        # Keras counts the batches and stops at the last one. Declared endless, the data set is not asked by
        # all workers together before each step whether there is more; and the end, where some would leave
        # a collective that others wait in, is never met.
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        return own.apply(endless).prefetch(tf.data.AUTOTUNE)

    return strategy.distribute_datasets_from_function(share)


def _are_weighed(adapter: Any, dataset: Any, size: int | None, replicas: int) -> bool:
    """Whether training batches may have parts of unequal size; a line says where they have too few rows."""
    are_arrays = type(adapter).__name__ == "ArrayDataAdapter"
    rest = adapter.partial_batch_size if are_arrays else None
    least = min(one for one in (size, rest, replicas) if one)
    if least < replicas and current_process().is_writer:
        announce(too_few_rows(least, replicas, is_rest=least != size))
    if are_arrays and size:
        return bool(size % replicas or (rest or 0) % replicas)
    return not rows.are_equal(dataset, replicas)


def too_few_rows(count: int, replicas: int, *, is_rest: bool) -> str:
    """Say what a training batch of fewer rows than replicas means.

    Args:
        count: its rows.
        replicas: all that train.
        is_rest: whether it is only the last one of an epoch.
    """
    which = "the last batch of an epoch" if is_rest else "a batch"
    has = f"{which} has {count} row{'s' if count > 1 else ''} for {replicas} replicas"
    advice = "" if is_rest else f"; with a batch_size of at least {replicas} each has rows of its own"
    return (
        f"{has}, so that some train on the same row: it counts once in the gradients, and once for each of "
        f"them in the epoch's loss and metrics{advice}"
    )


def _counted(adapter: Any, dataset: Any) -> Any:
    """The data set with a known number of batches, read once to find out where nothing else says it."""
    data = importlib.import_module("tensorflow").data
    if not isinstance(dataset, data.Dataset) or adapter.num_batches is not None:
        return dataset
    if int(dataset.cardinality()) == data.INFINITE_CARDINALITY:
        return dataset
    if type(adapter).__name__ != "TFDatasetAdapter":
        raise InvalidConfiguration(
            "the length of this input is not known beforehand, and several workers can't find its end "
            "together: pass steps_per_epoch (fit), validation_steps or steps (evaluate), or a tf.data.Dataset"
        )
    announce("counting the batches of a data set; `tf.data.experimental.assert_cardinality` saves that")
    count = int(dataset.reduce(0, lambda total, *_: total + 1))
    adapter._dataset = dataset.apply(data.experimental.assert_cardinality(count))
    return adapter._dataset


def _is_ours_to_share(dataset: Any) -> bool:
    policies = importlib.import_module("tensorflow").data.experimental.AutoShardPolicy
    chosen = dataset.options().experimental_distribute.auto_shard_policy
    return chosen in (policies.AUTO, policies.DATA) and rows.has_rows(dataset)
