"""Which part of each global batch a worker takes under Keras's own `fit`, `evaluate` and `predict`.

Every worker reads the same batches in the same order and cuts its own rows out of each: what TensorFlow's
sharding policy DATA means, but exact for the last, smaller batch of an epoch. A training batch is trimmed
to a multiple of the number of replicas; in evaluation every row counts once. A rest smaller than the number
of replicas is filled up from the batch before, so that none goes without. Where the user has chosen another
policy (FILE, HINT, OFF), TensorFlow shards as ever.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.plain import rows
from trainjob_trainer.plain.calls import Use
from trainjob_trainer.plain.keras_repair import is_collective
from trainjob_trainer.plain.process import current_process
from trainjob_trainer.plain.seeds import is_seeded_by_user, job_seed
from trainjob_trainer.reporting.lines import announce

KERAS_BATCH = 32
"""What Keras takes for arrays when the script names no batch size."""


def share_batches(trainer: ModuleType) -> None:
    """Replace how `TFEpochIterator` of `keras.src.backend.tensorflow.trainer` distributes a data set."""
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
        if training and collective:
            kwargs["batch_size"] = _batch_size(kwargs, distribute_strategy.num_replicas_in_sync)
        base_init(self, *args, **kwargs)
        self._distribute_strategy = distribute_strategy
        self._trainjob_order = Order()
        with self._trainjob_order.applied_to(self.data_adapter):
            dataset = self.data_adapter.get_tf_dataset()
        size = _size_of(self.data_adapter, dataset)
        if training and current_process().call is not None:
            current_process().call.batch_size = size  # type: ignore[union-attr]
        if collective and not self.steps_per_epoch:
            dataset = _counted(self.data_adapter, dataset)
            self._num_batches = self.data_adapter.num_batches
        self._trainjob_endless = training and collective and _may_go_on(self, dataset)
        self._distributed_dataset = _distributed(
            dataset, distribute_strategy, size, training=training, endless=self._trainjob_endless
        )

    @functools.wraps(base_get)
    def _get_iterator(self: Any) -> Any:
        self._trainjob_order.begin_epoch()
        return base_get(self)

    iterator.__init__ = __init__
    iterator._get_iterator = _get_iterator


class Order:
    """The order of shuffled arrays: a function of seed, `fit` and epoch. So workers agree, and restarts too.

    A script that seeds TensorFlow itself keeps Keras's order, which then is the same in every epoch.
    """

    def __init__(self) -> None:
        """No order yet."""
        self._epoch: Any = None

    @contextlib.contextmanager
    def applied_to(self, adapter: Any) -> Iterator[None]:
        """Have the data set that Keras builds meanwhile from arrays shuffled in this order."""
        tf = importlib.import_module("tensorflow")
        context = importlib.import_module("tensorflow.python.eager.context")
        if type(adapter).__name__ != "ArrayDataAdapter" or not getattr(adapter, "_shuffle", False):
            yield
            return
        if is_seeded_by_user(context):
            yield
            return
        with tf.init_scope(), tf.device("/CPU:0"):
            self._epoch = tf.Variable(0, dtype=tf.int64, trainable=False)
        original, epoch = tf.random.shuffle, self._epoch

        def shuffle(value: Any, seed: Any = None, name: Any = None) -> Any:
            del seed, name
            number = epoch.assign_add(1) - 1
            return tf.random.experimental.stateless_shuffle(
                value, [tf.constant(job_seed(), tf.int64), number]
            )

        tf.random.shuffle = shuffle
        try:
            yield
        finally:
            tf.random.shuffle = original

    def begin_epoch(self) -> None:
        """Choose the order of the iterator that is about to be made; it counts its further epochs itself."""
        call = current_process().call
        if self._epoch is not None and call is not None:
            self._epoch.assign(call.number * 2**32 + call.epoch)


def _batch_size(arguments: Any, replicas: int) -> Any:
    """The batch size for arrays: the user's, or Keras's default brought down to what the replicas divide."""
    given = arguments.get("batch_size")
    if given or arguments.get("steps_per_epoch") or KERAS_BATCH % replicas == 0:
        return given
    if not _are_arrays(arguments.get("x")):
        return given
    size = max(replicas, KERAS_BATCH - KERAS_BATCH % replicas)
    announce(f"no batch_size given: {size}, which {replicas} replicas divide")
    return size


def _are_arrays(x: Any) -> bool:
    first = x
    while isinstance(first, (list, tuple, dict)) and first:
        first = next(iter(first.values() if isinstance(first, dict) else first))
    return hasattr(first, "shape") and hasattr(first, "__getitem__") and not hasattr(first, "element_spec")


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
    return is_known and kind in ("ArrayDataAdapter", "TFDatasetAdapter") and _is_ours_to_share(dataset)


def _distributed(
    dataset: Any, strategy: Any, size: int | None, *, training: bool, endless: bool = False
) -> Any:
    tf = importlib.import_module("tensorflow")
    if isinstance(dataset, tf.distribute.DistributedDataset):
        return dataset
    if not is_collective(strategy) or not _is_ours_to_share(dataset):
        return strategy.experimental_distribute_dataset(dataset)
    replicas = strategy.num_replicas_in_sync
    whole = rows.fill_rest(dataset, replicas, repeat=training)
    if training:
        _check_divisible(size, replicas)
        whole = rows.trim(whole, replicas)
    if endless:
        whole = whole.repeat()

    def share(context: Any) -> Any:
        local = replicas // context.num_input_pipelines
        own = rows.part(whole, first=context.input_pipeline_id * local, count=local, of=replicas)
        # Keras counts the batches and stops at the last one. Declared endless, the data set is not asked by
        # all workers together before each step whether there is more; and the end, where some would leave
        # a collective that others wait in, is never met.
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        return own.apply(endless).prefetch(tf.data.AUTOTUNE)

    return strategy.distribute_datasets_from_function(share)


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


def _check_divisible(batch: int | None, replicas: int) -> None:
    if batch and batch % replicas:
        lower = batch - batch % replicas
        choice = f"{lower} or {lower + replicas}" if lower else str(replicas)
        raise InvalidConfiguration(
            f"a global batch of {batch} can't be divided among {replicas} replicas: use {choice}"
        )
