"""The user's own `tf.distribute.MultiWorkerMirroredStrategy()`, in each role."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any, NoReturn

from trainjob_trainer.distribution.early_operation import explained
from trainjob_trainer.distribution.first_worker import bear_pauses, wait_for_first_worker
from trainjob_trainer.edge import exit_now
from trainjob_trainer.plain.process import (
    PlainProcess,
    current_process,
    end_on_request,
    seed_tensorflow,
)
from trainjob_trainer.plain.writers import forget_saves
from trainjob_trainer.reporting.progress import notice
from trainjob_trainer.resume import end_if_finished
from trainjob_trainer.task import Task


def prepare_strategy(module: ModuleType) -> None:
    """Wrap the constructor in `tensorflow.python.distribute.collective_all_reduce_strategy`.

    The wrapper seeds TensorFlow and explains errors. The evaluator gets a strategy of the same class for its
    own process alone: it must neither wait for the workers nor delay them.
    """
    strategy: Any = module.CollectiveAllReduceStrategy
    original = strategy.__init__
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def __init__(  # noqa: N807 - it takes the place of one
        self: Any, cluster_resolver: Any = None, communication_options: Any = None
    ) -> None:
        process = current_process()
        if not process.task.is_evaluator:
            end_if_finished(process.trainings.root, process.environment.uid, process.progress)
        process.claim_output()
        forget_saves(process)
        process.progress.keep_fresh()
        if process.task.is_evaluator:
            cluster_resolver = _own_resolver(process.task)
            end_at_own_loop(process)
        end_on_request(process)
        seed_tensorflow(module.context)
        process.progress.update(state="waiting" if process.task.num_workers > 1 else "starting")
        wait_for_first_worker(process.task)
        bear_pauses(has_agent=process.environment.has_agent)
        with explained(process.task):
            original(self, cluster_resolver, communication_options)
        process.progress.update(state="starting")
        from trainjob_trainer.distribution.initial_values import create_locally  # noqa: PLC0415 - needs all of TensorFlow

        create_locally(self, process.task)

    strategy.__init__ = __init__
    read_as_numbers(importlib.import_module("tensorflow.python.distribute.values").DistributedVariable)
    keep_datasets(importlib.import_module("tensorflow.python.data.ops.multi_device_iterator_ops"))


def end_at_own_loop(process: PlainProcess) -> None:
    """End the evaluator where a script without `fit` begins to train: it would repeat the whole training.

    The sign of training is a gradient within `strategy.run`, outside Keras's `evaluate` and `predict`. A
    `run` without a gradient may come before `fit`, and a gradient outside `run` may be a part of a model.
    """
    tf = importlib.import_module("tensorflow")
    original = tf.GradientTape.gradient
    if hasattr(original, "_trainjob_managed"):
        return

    @functools.wraps(original)
    def gradient(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_within_run = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        if is_within_run and not process.is_scoring:
            notice(
                "the script trains in a loop of its own, without fit(): the evaluator has nothing to "
                "evaluate, and ends. Use fit(), train_and_evaluate() or init() with its each_checkpoint(), "
                "or leave the evaluator out with `evaluator: {replicas: 0}`"
            )
            end_evaluator(process)
        return original(self, *args, **kwargs)

    gradient._trainjob_managed = True  # type: ignore[attr-defined]
    tf.GradientTape.gradient = gradient


def end_evaluator(process: PlainProcess) -> NoReturn:
    """End the process at once, with exit code 0: a script might catch SystemExit and continue."""
    process.progress.update(state="finished")
    process.progress.flush()
    exit_now(0)


def read_as_numbers(kind: Any) -> None:
    """Let `float()` and `int()` read a strategy's variables, as they read those without a strategy."""
    for number in (float, int):
        if not hasattr(kind, f"__{number.__name__}__"):
            setattr(kind, f"__{number.__name__}__", lambda self, number=number: number(self.numpy()))


def keep_datasets(module: ModuleType) -> None:
    """Keep the dataset of an iterator until the iterator is freed; TensorFlow frees the dataset before it.

    A thread of the iterator may still read it then, and the process ends with a segmentation fault. This
    happens to datasets that aren't optimized, as Keras's of arrays, and to iterators that are dropped before
    their end, as with `validation_steps`.
    """
    iterator: Any = module.OwnedMultiDeviceIterator
    original = iterator.__init__
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def __init__(self: Any, dataset: Any = None, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - as above
        kept = None if dataset is None else _Kept(dataset)
        original(self, kept, *args, **kwargs)
        if kept is not None:
            # Attributes are freed in the order in which they were set.
            for each in (*self._device_iterators, self):
                each._trainjob_kept = kept

    iterator.__init__ = __init__


class _Kept:
    """A dataset that remembers the last one made of it: the iterator adds options of its own."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def with_options(self, options: Any) -> Any:
        self._made = self._dataset.with_options(options)
        return self._made


def _own_resolver(task: Task) -> Any:
    """Return an empty cluster of type `evaluator`, so that scripts do not take this process for the chief."""
    tf = importlib.import_module("tensorflow")
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({}),
        task_type=task.type,
        task_id=task.index,
        num_accelerators={"GPU": min(1, len(tf.config.list_physical_devices("GPU")))},
    )
