"""Training with parameter servers: the chief schedules steps, workers take them, servers hold variables.

The chief calls Keras's `fit`, whose calls are blocks of steps that workers have done.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.distribution.first_worker import explained, is_gone
from trainjob_trainer.distribution.strategy import training_cluster
from trainjob_trainer.edge import exit_now
from trainjob_trainer.environment import is_smoke
from trainjob_trainer.errors import InvalidConfiguration, OutputUnwritable
from trainjob_trainer.keras.data import BY_PAIRS, JobEpochs
from trainjob_trainer.keras.gradients import GradientPath, any_of
from trainjob_trainer.keras.metrics import metric_variables
from trainjob_trainer.keras.model import optimizers_of
from trainjob_trainer.keras.not_finite import Found, OnNan
from trainjob_trainer.keras.pace import StepsPerExecution
from trainjob_trainer.keras.pipelines import (
    as_written,
    batch_size_of,
    count_elements,
    in_order,
    shuffle_buffer,
)
from trainjob_trainer.keras.work_time import moment_after
from trainjob_trainer.reporting.progress import announce
from trainjob_trainer.session import Session, assigned
from trainjob_trainer.task import Task

# Concurrent additions on the server.
#
# Keras adds to a variable by reading it, adding, and writing the sum back. If two workers do so at the same
# time, one addition is lost: with two workers, a third of all steps. An addition on the server loses none.


def add_on_server(model: Any) -> None:
    """Make additions to a built model's metrics and its optimizer's step count run on the server.

    Weights and moments are updated in place anyway.
    """
    iterations = getattr(model.optimizer, "iterations", None)
    for variable in [*metric_variables(model), *([iterations] if iterations is not None else [])]:
        variable.assign_add = functools.partial(_change_in_place, variable, "assign_add")
        variable.assign_sub = functools.partial(_change_in_place, variable, "assign_sub")


def _change_in_place(variable: Any, change: str, value: Any) -> Any:
    getattr(variable.value, change)(tf.cast(value, variable.value.dtype))
    return variable.value


class Tally:
    """The workers' reports on their blocks, in a variable on a parameter server.

    A block's return value would stay on its worker until the chief fetches it, and be lost with that worker.
    """

    def __init__(self, strategy: Any, workers: int) -> None:
        """Create the variable: total seconds, total steps, and the first bad step of each worker."""
        with strategy.scope():
            self._sums = tf.Variable(tf.zeros([2 + workers], tf.float64), trainable=False, name="tally")
        self._workers = workers
        self._seen = np.zeros(2)
        self._seconds_a_step = 0.0

    def add(self, seconds: Any, steps: Any, worker: Any, fault: Any) -> Any:
        """Add a block's duration, steps and first bad step (or 0), in a worker's trace at the block's end."""
        done = tf.stack([seconds, tf.cast(steps, tf.float64)])
        faults = tf.one_hot(worker, self._workers, dtype=tf.float64) * tf.cast(fault, tf.float64)
        return self._sums.assign_add(tf.concat([done, faults], axis=0), read_value=False)

    def look(self) -> tuple[float, list[int]]:
        """Return the seconds per step since the last look, and the first bad step of each worker, or 0."""
        sums = self._sums.numpy()
        seconds, steps = sums[:2] - self._seen
        if steps:  # otherwise the last look counted this block too
            self._seconds_a_step = seconds / steps
            self._seen = sums[:2]
        return self._seconds_a_step, [int(number) for number in sums[2:]]


def many_steps(strategy: Any, step: Any, path: GradientPath, tally: Tally) -> Any:
    """Return a function of a worker's iterator and a number of steps; it takes them and adds to the tally."""

    @tf.function(autograph=False)  # type: ignore[untyped-decorator,unused-ignore]
    def call(iterator: Any, count: Any) -> None:
        def body(done: Any, _: Any, first_fault: Any) -> Any:
            with tf.control_dependencies([done]):
                worker, data = next(iterator)
            one = strategy.run(lambda: vars(path.trace(lambda: step(data))))
            has_fault = any_of(strategy.experimental_local_results(one["fault"]))
            is_first = has_fault & (first_fault == 0)
            return done + 1, worker, tf.where(is_first, done + 1, first_fault)

        began = moment_after([count])
        begin = tf.constant(0), tf.constant(0, tf.int64), tf.constant(0)
        with tf.control_dependencies([began]):
            done, worker, first_fault = tf.while_loop(lambda done, *_: done < count, body, begin)
        tally.add(moment_after([done]) - began, done, worker, first_fault)

    return call


# The server that a `ps` or a `worker` runs for the chief.


SECONDS_BETWEEN_LOOKS = 2.0
_LEAST_THREADS = 4


def serve(session: Session) -> NoReturn:
    """Serve until the chief has finished, then end the process with exit code 0.

    SIGTERM ends the process at once, from the thread that listens for it: there is nothing to save. Agents
    don't wait for this process: they end it when the chief's process has ended. Raises PortInUse if the
    address of this replica is in use.
    """
    task = session.task
    with explained(task):
        server = tf.distribute.Server(
            training_cluster(task),
            job_name=task.type,
            task_index=task.index,
            protocol="grpc",
            config=_server_config(task),
        )
    announce(f"{task.replica} serves at {task.address}")
    session.progress.update(state="training")
    wait_for_end(lambda: _has_finished(session.trainings.root), lambda: is_gone(task.writer_address))
    del server
    session.progress.update(state="finished")
    session.progress.flush()
    exit_now(0)


def _has_finished(store: CheckpointStore) -> bool:
    try:
        return store.final() is not None
    except OutputUnwritable:
        return False  # it can't be read now: the next poll reads it again


def wait_for_end(
    has_finished: Callable[[], bool],
    is_chief_gone: Callable[[], bool],
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Return when training has finished and the chief has ended; until then it may read the variables.

    Until the chief has started, the final marker may be that of an earlier training, so it doesn't count.
    The chief has ended when its address refuses connections.
    """
    has_come = False
    while True:
        is_gone_now = is_chief_gone()
        if has_come and is_gone_now and has_finished():
            return
        has_come = has_come or not is_gone_now
        wait(SECONDS_BETWEEN_LOOKS)


def _server_config(task: Task) -> Any:
    """Parameter servers leave GPUs to the workers; requests that wait for each other need enough threads."""
    config = tf.compat.v1.ConfigProto()
    config.gpu_options.allow_growth = True
    if task.type == "ps":
        config.device_count["GPU"] = 0
    config.inter_op_parallelism_threads = max(_LEAST_THREADS, task.num_workers + 1)
    return config


# Each worker's share of the training data.


_WARN_OF_STATE = 0
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def worker_iterators(strategy: Any, stream: Any, *, workers: int, batch: int) -> Any:
    """Start each worker's share of a stream there: worker i of n takes every n-th example from the i-th on.

    TensorFlow's own `create_per_worker_dataset` does not pass a worker its number, so all would read the same
    examples. A restarted worker begins its share again. A step takes `batch` examples, all of one worker.
    `coordinator.schedule` gives each worker its own iterator, as `build_share` describes it.
    """
    begin = build_share(stream, workers=workers, batch=batch)
    coordination = tf.distribute.experimental.coordinator
    # Each strategy has one coordinator, which every call returns.
    remote = coordination.ClusterCoordinator(strategy)._cluster.workers
    iterators = [
        one.create_resource(lambda worker: iter(begin(tf.constant(worker, tf.int64))), args=(number,))
        for number, one in enumerate(remote)
    ]
    for iterator in iterators:
        iterator._type_spec = tf.data.IteratorSpec(begin.structured_outputs.element_spec)
    return coordination.PerWorkerValues(tuple(iterators))


def build_share(stream: Any, *, workers: int, batch: int) -> Any:
    """Return a function that builds a worker's share where it is called, from the worker's number.

    Its elements are pairs of that number and a full batch: the number shows the chief which worker took the
    step. The share is declared endless: for data that may end, TensorFlow asks before each step.
    """
    graph = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(stream),
        external_state_policy=_WARN_OF_STATE,
        strip_device_assignment=True,
    )
    refuse_python(graph.numpy())
    spec = stream.element_spec

    @tf.function(autograph=False, input_signature=[tf.TensorSpec([], tf.int64)])  # type: ignore[untyped-decorator,unused-ignore]
    def share(worker: Any) -> Any:
        whole = tf.data.experimental.from_variant(tf.raw_ops.DatasetFromGraph(graph_def=graph), spec)
        batches = whole.shard(workers, worker).batch(batch, drop_remainder=True)
        endless = batches.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        numbers = tf.data.Dataset.from_tensors(worker).repeat()
        return tf.data.Dataset.zip((numbers, in_order(endless).prefetch(tf.data.AUTOTUNE)))

    return share.get_concrete_function()


def refuse_python(graph: bytes) -> None:
    """Refuse a data set (a serialized GraphDef) that calls Python: workers don't have the user's program."""
    if b"PyFunc" not in graph:
        return
    parsed = tf.compat.v1.GraphDef.FromString(graph)
    functions = [node for function in parsed.library.function for node in function.node_def]
    if any(node.op in _PYTHON for node in [*parsed.node, *functions]):
        raise InvalidConfiguration(
            "train calls Python for its examples (from_generator, py_function, numpy_function), and with "
            "parameter servers the workers read the data without your program: use TensorFlow's "
            "own operations, or TFRecord files"
        )


def shuffled_passes(examples: Any, seed: int, first: int) -> Any:
    """Return the examples again and again, from the pass `first` on, each in an order of its own.

    The order is of the seed and the pass alone: the graph may hold no state, which workers wouldn't have.
    """
    buffer = shuffle_buffer(examples)

    @as_written
    def one_pass(number: Any) -> Any:
        # This holds in the traced function only. The order must not depend on TensorFlow's global seed,
        # which the user may set anywhere, and which must not be 0 if the other seed is a tensor.
        tf.random.set_seed(1)
        return examples.shuffle(buffer, seed=number + seed * _SEED_STRIDE, reshuffle_each_iteration=False)

    return tf.data.Dataset.range(first, tf.int64.max).flat_map(one_pass)


_SEED_STRIDE = 1_000_003

# The steps of an epoch, as blocks: no block is outstanding at its end, or when a checkpoint is saved.


BLOCKS_A_WORKER = 4
"""Least number of blocks per worker up to the next synchronization point: it keeps the wait there short."""
BLOCKS_AHEAD = 8
"""Limit of outstanding blocks per worker; the others wait for a slow worker's oldest block only at it."""
_SECONDS_BETWEEN_REPORTS = 0.5


def next_block(left: int, wanted: int, workers: int) -> int:
    """Return the steps of the next block: at least 1, at most `left`, those up to the synchronization point.

    `wanted` steps take long enough that the cost of scheduling them is negligible.
    """
    fair = -(-left // (workers * BLOCKS_A_WORKER))
    return max(1, min(wanted, fair, left))


KerasEpochs: Any = JobEpochs.__base__  # Keras's module may have ours in its place


class BlocksOfSteps(KerasEpochs):  # type: ignore[misc]
    """Keras's iterator of epochs: its calls are blocks of steps that workers have done.

    If a worker dies, its block runs again on another one. Steps that the dead worker took are taken again,
    and counted once. While a checkpoint is saved no block is outstanding, so it holds exactly its steps. What
    Keras gets as a call's data are the metrics of the epoch's steps until then.
    """

    def __init__(
        self,
        session: Session,
        model: Any,
        examples: tuple[Any, int, int],
        distribute_strategy: Any,
        **arguments: Any,
    ) -> None:
        """Take a built model, what `_examples` returned, and Keras's `arguments`."""
        super(KerasEpochs, self).__init__(**arguments)
        call, workers = session.call, session.task.num_workers
        assert call is not None  # noqa: S101 - `fit` has made it
        self._session, self._call, self._model, self._examples = session, call, model, examples
        self._distribute_strategy = strategy = distribute_strategy
        self._coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
        self._tally = Tally(strategy, workers)
        on_nan = OnNan(session.setting("on_nan"))
        path = GradientPath(strategy, optimizers_of(model), on_nan if on_nan is OnNan.IGNORE else OnNan.SKIP)
        self._steps = many_steps(strategy, model.train_step, path, self._tally)
        self._executions = StepsPerExecution(lambda number: number)
        self._iterators: Any = None
        call.data, call.batch_size = self, examples[1]

    def _enumerate_iterator(self) -> Iterator[tuple[Any, ...]]:
        """Yield the blocks of an epoch, each when it is done.

        Raises tf.errors.OpError if a block failed for another reason than the end of its worker.
        """
        call, session, total = self._call, self._session, int(self.steps_per_epoch)
        workers, writer, done = session.task.num_workers, call.record.writer, call.batches_before
        if self._iterators is None:
            self._iterators = self._begin(call.epoch * total + done)
        blocks: deque[tuple[int, Any]] = deque()
        metrics: dict[str, Any] = {}
        read_at = 0.0
        while done < total:
            until = min(total, done + call.every - session.step % call.every) if call.every else total
            handed_out = done
            while done < until:
                is_due = call.times.is_due(session.step, epoch_ends=False, is_writing=writer.is_writing)
                most = 1 if is_due or session.stop.requested else BLOCKS_AHEAD * workers
                while handed_out < until and len(blocks) < most:
                    count = next_block(until - handed_out, self._executions.wanted, workers)
                    block = (self._iterators, tf.constant(count, tf.int32))
                    blocks.append((count, self._coordinator.schedule(self._steps, args=block)))
                    handed_out += count
                count, running = blocks.popleft()
                running.fetch()
                seconds, faults = self._tally.look()
                if call.watch is not None:
                    call.watch.look(Found([0, *faults]), session.step)  # the chief, the first, takes none
                self._executions.record(count, count * seconds)
                writer.watch()
                call.is_ahead = bool(blocks)
                if not blocks or time.monotonic() - read_at >= _SECONDS_BETWEEN_REPORTS:
                    metrics, read_at = self._model.get_metrics_result(), time.monotonic()
                done += count
                yield (done - 1, metrics) if BY_PAIRS else (done - count, done - 1, metrics)

    def _begin(self, done: int) -> Any:
        """Return the workers' iterators, which stand where `done` steps have come to."""
        (stream, batch, count), setting = self._examples, self._session.setting
        if count:
            first, offset = divmod(done * batch, count)
            stream = (
                shuffled_passes(stream, setting("seed"), first) if setting("shuffle") else stream.repeat()
            )
            stream = stream.skip(offset)
        workers = self._session.task.num_workers
        return worker_iterators(self._distribute_strategy, stream, workers=workers, batch=batch)

    def replay(self, call: Any, validation: Any, validation_steps: int | None, *, goes_on: bool) -> None:
        """Do nothing: the data begin where the steps done have come to."""


@contextlib.contextmanager
def coordinated(session: Session, model: Any, data: Any) -> Iterator[int]:
    """Have `model.fit` of this data schedule its steps on the workers; yield its `steps_per_epoch`.

    Args:
        session: the chief's, with its settings.
        model: compiled; made in the scope of the strategy, which is connected to all workers.
        data: the training data: a tf.data.Dataset of examples, or of batches, which are cut anew.

    Raises InvalidConfiguration for data or settings that can't be had with parameter servers.
    """
    examples, batch, count = found = _examples(session, data)
    with model.distribute_strategy.scope():  # steps on the workers can't create variables
        model._symbolic_build(
            data_batch=tf.nest.map_structure(
                lambda part: tf.TensorSpec([batch, *part.shape], part.dtype), examples.element_spec
            )
        )
        model.optimizer.build(model.trainable_variables)
    add_on_server(model)

    def metrics_of(block: Any) -> Any:
        return block

    metrics_of.watched_for = OnNan(session.setting("on_nan"))  # type: ignore[attr-defined]
    session.progress.update(global_batch=batch)
    trainer = importlib.import_module("keras.src.backend.tensorflow.trainer")
    with (
        assigned(trainer, "TFEpochIterator", functools.partial(BlocksOfSteps, session, model, found)),
        assigned(model, "_maybe_symbolic_build", lambda **_: None),
        assigned(model, "train_function", metrics_of),
    ):
        yield session.setting("steps_per_epoch") or max(1, count // batch)


def _examples(session: Session, data: Any) -> tuple[Any, int, int]:
    """Return the single examples, how many a step takes, and how many there are; 0 if they are endless."""
    if not isinstance(data, tf.data.Dataset):
        raise InvalidConfiguration("train: with parameter servers it must be a tf.data.Dataset, or arrays")
    if session.setting("on_nan") == OnNan.SKIP.value:
        raise InvalidConfiguration(
            'on_nan: "skip" isn\'t possible with parameter servers, since metrics that several workers add '
            'to can\'t be put back: use "stop" or "ignore"'
        )
    rows = batch_size_of(data)
    batch = session.setting("global_batch") or rows
    if not batch:
        raise InvalidConfiguration("global_batch: must be given, the number of examples that a step takes")
    examples = data if rows is None else data.unbatch()
    count = int(examples.cardinality())
    is_endless = int(data.cardinality()) == tf.data.INFINITE_CARDINALITY
    if is_endless and not session.setting("steps_per_epoch"):
        raise InvalidConfiguration("steps_per_epoch: must be given, as the training data are endless")
    if is_smoke(os.environ):
        examples, count, is_endless = examples.take(batch).repeat(), 0, True
    if not is_endless and count < 0:
        announce("counting the training examples; `tf.data.experimental.assert_cardinality` saves that")
        count = count_elements(examples)
    if count == 0 and not is_endless:
        raise InvalidConfiguration("train: there are no examples")
    return examples, batch, 0 if is_endless else count
