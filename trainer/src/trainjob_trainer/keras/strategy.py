"""The strategy of a plain script: the job's workers train together, whatever strategy the script names.

One of several workers has one MultiWorkerMirroredStrategy. It is built right before TensorFlow's first
operation, since it configures the collectives. From then on the constructors of this strategy and of
`MirroredStrategy` return it, and `fit` brings a model into it that was built without one. With
TRAIN_STRATEGY=own a script keeps the strategies that it makes.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from trainjob_trainer.distribution.first_worker import bear_pauses, explained, wait_for_first_worker
from trainjob_trainer.edge import exit_now
from trainjob_trainer.environment import STRATEGY
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.keras.writers import forget_saves
from trainjob_trainer.reporting.progress import announce, notice
from trainjob_trainer.resume import end_if_finished
from trainjob_trainer.session import (
    Session,
    assigned,
    current_session,
    end_on_request,
    job_seed,
)
from trainjob_trainer.task import Task

_COLLECTIVE = "tensorflow.python.distribute.collective_all_reduce_strategy"
_HOROVOD = "horovod.common.basics"


def prepare_strategy(module: ModuleType) -> None:
    """Wrap the constructor in `tensorflow.python.distribute.collective_all_reduce_strategy`.

    The wrapper explains errors. The evaluator gets a strategy of the same class for its
    own process alone: it must neither wait for the workers nor delay them.
    """
    strategy: Any = module.CollectiveAllReduceStrategy
    original = strategy.__init__

    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001, N807 - it takes the place of one
        return _built() or object.__new__(cls)

    @functools.wraps(original)
    def __init__(  # noqa: N807 - as above
        self: Any, cluster_resolver: Any = None, communication_options: Any = None
    ) -> None:
        session = current_session()
        if self is _built():
            return
        with _building.lock, assigned(_building, "is_begun", True):
            if not session.task.is_evaluator:
                end_if_finished(session.trainings.root, session.environment.uid, session.progress)
            session.claim_output()
            forget_saves(session)
            session.progress.keep_fresh()
            needs_collectives = session.task.num_workers > 1 or not module.context.context()._initialized
            if session.task.is_evaluator or not needs_collectives:  # an operation has run before
                # An empty cluster, of the process's type: scripts do not take the evaluator for the chief.
                tf, task = importlib.import_module("tensorflow"), session.task
                gpus = len(tf.config.list_physical_devices("GPU"))
                cluster_resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
                    tf.train.ClusterSpec({}),
                    task_type=task.type,
                    task_id=task.index,
                    num_accelerators={"GPU": min(1, gpus) if task.is_evaluator else gpus},
                )
            end_on_request(session)
            session.progress.update(state="waiting" if session.task.num_workers > 1 else "starting")
            wait_for_first_worker(session.task)
            bear_pauses(has_agent=session.environment.has_agent)
            with explained(session.task):
                original(self, cluster_resolver, communication_options)
            session.progress.update(state="starting")
            from trainjob_trainer.distribution.collective import is_collective  # noqa: PLC0415 - needs all of TensorFlow
            from trainjob_trainer.distribution.initial_values import InitialValues  # noqa: PLC0415 - as above

            if is_collective(self):
                InitialValues(self, session.task).install()
            is_alone = session.task.num_workers == 1 and not session.task.is_evaluator
            if is_alone or trains_together(session.task):
                _joint.append((session.task, self))

    strategy.__new__ = staticmethod(__new__)
    strategy.__init__ = __init__


def prepare_mirrored(module: ModuleType) -> None:
    """Have the constructor in `tensorflow.python.distribute.mirrored_strategy` return the job's strategy."""
    strategy: Any = module.MirroredStrategy

    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001, N807 - it takes the place of one
        joint = strategy_of_the_job()
        if joint is not None:
            _say("tf.distribute.MirroredStrategy() is the MultiWorkerMirroredStrategy")
        return joint or object.__new__(cls)

    strategy.__new__ = staticmethod(__new__)


def build_before_first_operation(context: ModuleType) -> None:
    """Seed TensorFlow and build the strategy when `tensorflow.python.eager.context` starts its runtime."""
    original = context.Context.ensure_initialized

    @functools.wraps(original)
    def ensure_initialized(self: Any) -> None:
        if not self._initialized:
            session = current_session()
            draws_alike = not session.task.has_parameter_servers and _HOROVOD not in sys.modules
            if draws_alike and context.global_seed() is None:
                context.set_global_seed(job_seed())
            strategy_of_the_job()
            watch_own_loop(session)
        original(self)

    context.Context.ensure_initialized = ensure_initialized


_building = SimpleNamespace(lock=threading.RLock(), is_begun=False)
"""Whether the strategy is being built, by the thread that has the lock."""
_joint: list[tuple[Task, Any]] = []
"""The strategy of the job's workers, once it is built: TensorFlow builds one in a process."""


def _built() -> Any:
    task = current_session().task
    return next((strategy for owner, strategy in _joint if owner == task), None)


def strategy_of_the_job() -> Any:
    """Return the strategy of the job's several workers, built now if need be; None in any other process.

    It is None while it is being built, too: TensorFlow runs operations meanwhile.
    """
    if not trains_together(current_session().task):
        return None
    with _building.lock:
        if _building.is_begun:
            return None
        return _built() or importlib.import_module(_COLLECTIVE).CollectiveAllReduceStrategy()


def is_one_of_several(task: Task) -> bool:
    """Return whether this process is one of several workers, which neither servers nor Horovod connect."""
    is_worker = not task.is_evaluator and not task.has_parameter_servers
    return is_worker and task.num_workers > 1 and _HOROVOD not in sys.modules


def trains_together(task: Task) -> bool:
    """Return whether this process's script gets the strategy of the job's workers, whatever it names."""
    return is_one_of_several(task) and os.environ.get(STRATEGY) != "own"


def bring_in(model: Any) -> None:
    """Have the job's workers train a model together that was built without a strategy; each calls it."""
    strategy = strategy_of_the_job()
    if strategy is None or model._distribute_strategy is not None:
        return
    from trainjob_trainer.keras.trainer import bring_into_strategy  # noqa: PLC0415 - needs all of Keras

    _say("the model was built without a strategy, and is brought into the MultiWorkerMirroredStrategy")
    model._distribute_strategy = strategy
    bring_into_strategy(model, model.variables)
    model.train_function = model.test_function = model.predict_function = None


@functools.cache
def _say(what: str) -> None:
    session = current_session()
    if session.is_writer:
        announce(
            f"{what} of the job's {session.task.num_workers} workers, which train one model together; "
            "TRAIN_STRATEGY=own keeps the script's own"
        )


_MET = ("fit", "evaluate", "predict")


def meet(session: Session, model: Any, name: str) -> None:
    """Check that all workers make the same call of Keras's; each calls it before its own.

    If one of them has ended instead, the leading agent sees that by the report. Raises InvalidConfiguration
    if another worker makes another call.
    """
    from trainjob_trainer.distribution.collective import gather, is_collective  # noqa: PLC0415 - needs all of TensorFlow

    strategy, task = model.distribute_strategy, session.task
    if session.call is not None or not is_collective(strategy):
        return

    session.progress.update(meets=name)
    found = gather(strategy, task, _MET.index(name))
    session.progress.update(meets=None)
    for rank, number in enumerate(found):
        if _MET[number] != name:
            other = f"{task.trainees[rank]} in {_MET[number]}()"
            raise InvalidConfiguration(
                f"{task.replica} is in {name}(), and {other}: every worker must make the same calls on a "
                "model that they train together; to call it in one worker only, load a copy "
                "(keras.models.load_model)"
            )


def watch_own_loop(session: Session) -> None:
    """Watch for a loop of the script's own: where `fit` doesn't train, a gradient shows it.

    The evaluator ends there, since it would repeat the whole training. A worker whose loop has no strategy
    says so. A `run` without a gradient may come before `fit`; a gradient for other tensors than variables,
    outside `run`, may be a part of a model.
    """
    tf = importlib.import_module("tensorflow")
    original = tf.GradientTape.gradient
    is_evaluator = session.task.is_evaluator
    if hasattr(original, "_trainjob_managed") or not (is_evaluator or is_one_of_several(session.task)):
        return

    @functools.wraps(original)
    def gradient(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        is_within_run = tf.distribute.has_strategy() and not tf.distribute.in_cross_replica_context()
        trains = any(
            isinstance(one, tf.Variable) or type(one).__module__.startswith("keras.")
            for one in tf.nest.flatten(sources)
        )
        if is_evaluator and (is_within_run or trains) and not session.is_scoring:
            notice(
                "the script trains in a loop of its own, without fit(): the evaluator has nothing to "
                "evaluate, and ends. Use fit(), train_and_evaluate() or init() with its each_checkpoint(), "
                "or leave the evaluator out with `evaluator: {replicas: 0}`"
            )
            end_evaluator(session)
        if not is_evaluator and trains and not tf.distribute.has_strategy() and session.call is None:
            report_alone(session, "a loop of the script's own has no strategy")
        return original(self, target, sources, *args, **kwargs)

    gradient._trainjob_managed = True  # type: ignore[attr-defined]
    tf.GradientTape.gradient = gradient


def report_alone(session: Session, what: str) -> None:
    """Report, once, that each worker trains by itself; `what` says why."""
    if not session.progress.last.trains_alone:
        session.progress.update(trains_alone=True)
        notice(f"{what}: each worker trains the whole model by itself, and worker 0's is kept")


def end_evaluator(session: Session) -> NoReturn:
    """End the process at once, with exit code 0: a script might catch SystemExit and continue."""
    session.progress.update(state="finished")
    session.progress.flush()
    exit_now(0)


def read_as_numbers(module: ModuleType) -> None:
    """Let `float()` and `int()` read a strategy's variables, as they read those without a strategy.

    `module` is `tensorflow.python.distribute.values`.
    """
    kind: Any = module.DistributedVariable
    for number in (float, int):
        if not hasattr(kind, f"__{number.__name__}__"):
            setattr(kind, f"__{number.__name__}__", lambda self, number=number: number(self.numpy()))


def record_in_worker_0(module: ModuleType) -> None:
    """Have a worker but the first record nothing where `tensorflow.python.profiler.profiler_v2` would start.

    In those TensorFlow frees a recording wrongly: one of 50 ends the process (`free(): invalid pointer`).
    """
    profiler: Any = module
    original = profiler.start

    @functools.wraps(original)
    def start(logdir: Any, options: Any = None) -> None:
        task = current_session().task
        if task.is_writer or not is_one_of_several(task) or profiler._profiler is not None:
            original(logdir, options)
        else:
            profiler._profiler = SimpleNamespace(export_to_tb=lambda: None)  # what `stop` calls

    profiler.start = start


def keep_datasets(module: ModuleType) -> None:
    """Keep the dataset of an iterator until the iterator is freed; TensorFlow frees the dataset before it.

    A thread of the iterator may still read it then, and the process ends with a segmentation fault. This
    happens to datasets that aren't optimized, as Keras's of arrays, and to iterators that are dropped before
    their end, as with `validation_steps`.
    """
    iterator: Any = module.OwnedMultiDeviceIterator
    original = iterator.__init__

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
