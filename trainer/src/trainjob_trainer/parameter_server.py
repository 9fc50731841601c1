"""Training with parameter servers: the chief schedules steps, workers take them, servers hold variables."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from trainjob_trainer.checkpoint.snapshot import HostGroups, NamedArray, json_group, read
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.checkpoint_manager import CheckpointManager, Ending
from trainjob_trainer.distribution.first_worker import explained, is_gone
from trainjob_trainer.distribution.strategy import training_cluster
from trainjob_trainer.edge import exit_now
from trainjob_trainer.engine.gradient_path import GradientPath, any_of
from trainjob_trainer.engine.metric_state import (
    LAST_EPOCH,
    METRICS,
    MetricState,
    metric_variables,
    read_results,
    saved_results,
    scalars,
)
from trainjob_trainer.engine.model_state import optimizers_of
from trainjob_trainer.engine.not_finite import FiniteWatch, Found, OnNan
from trainjob_trainer.engine.steps_per_execution import StepsPerExecution, next_stop
from trainjob_trainer.engine.work_time import OwnTime, moment_after
from trainjob_trainer.errors import OutputUnwritable
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.progress import announce
from trainjob_trainer.resume import SETTINGS
from trainjob_trainer.task import Task
from trainjob_trainer.training import Training

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


@dataclass(frozen=True)
class Block:
    """Completed steps of one worker.

    Attributes:
        seconds: estimated duration of `steps`, from the mean of all steps since the block before.
        faults: by worker, the first step of a block, from 1, whose loss or gradients were not finite; 0
            without one. The update of that step was left out.
    """

    steps: int
    seconds: float
    faults: Sequence[int] = ()


class CoordinatedEngine:
    """Schedules blocks of steps on the workers, and counts each block when it is done.

    If a worker dies, its block runs again on another one. Steps that the dead worker took are taken again,
    and counted once. The strategy is connected to all workers; `build_model` built the model with it. With
    `watched`, updates that are not finite are left out and reported.
    """

    def __init__(self, strategy: Any, model: Any, workers: int, *, watched: bool = True) -> None:
        add_on_server(model)
        self._coordinator = tf.distribute.experimental.coordinator.ClusterCoordinator(strategy)
        self.model = model
        self._metrics = MetricState(model)
        self._outstanding: deque[tuple[int, Any]] = deque()
        self._tally = Tally(strategy, workers)
        on_nan = OnNan.SKIP if watched else OnNan.IGNORE
        path = GradientPath(strategy, optimizers_of(model), on_nan)
        self._steps = many_steps(strategy, model.train_step, path, self._tally)

    @property
    def outstanding(self) -> int:
        """Number of blocks that are scheduled and not yet taken back."""
        return len(self._outstanding)

    def hand_out(self, iterators: Any, steps: int) -> None:
        """Schedule a block of `steps`, at least 1, on any free worker, with its `worker_iterators`.

        Raises tf.errors.OpError if an earlier block failed for another reason than the end of its worker.
        """
        block = self._coordinator.schedule(self._steps, args=(iterators, tf.constant(steps, tf.int32)))
        self._outstanding.append((steps, block))

    def take_back(self) -> Block:
        """Wait for the oldest outstanding block and return it; raises as `hand_out`."""
        steps, block = self._outstanding.popleft()
        block.fetch()
        seconds_a_step, faults = self._tally.look()
        return Block(steps, steps * seconds_a_step, faults)

    def metrics(self) -> dict[str, float]:
        """The metrics of all steps since the last `reset`."""
        return scalars(self.model.get_metrics_result())

    def reset(self) -> None:
        """Reset the metrics for a new epoch. No block may be outstanding."""
        self.model.reset_metrics()

    @property
    def metric_state(self) -> list[NamedArray]:
        """The metrics' variables. No block may be outstanding."""
        return read({METRICS: metric_variables(self.model)})[METRICS]

    def resume_metrics(self, state: Sequence[NamedArray]) -> None:
        """Restore the metrics of an epoch that an earlier run began, if they fit this model."""
        self._metrics.put_back(state, is_writer=True)


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


def serve(replica: Replica) -> NoReturn:
    """Serve until the chief has finished, then end the process with exit code 0.

    SIGTERM ends the process at once, from the thread that listens for it: there is nothing to save. Agents
    don't wait for this process: they end it when the chief's process has ended. Raises PortInUse if the
    address of this replica is in use.
    """
    task = replica.task
    with explained(task):
        server = tf.distribute.Server(
            training_cluster(task),
            job_name=task.type,
            task_index=task.index,
            protocol="grpc",
            config=_server_config(task),
        )
    announce(f"{task.replica} serves at {task.address}")
    replica.progress.update(state="training")
    wait_for_end(lambda: _has_finished(replica.store), lambda: is_gone(task.writer_address))
    del server
    replica.progress.update(state="finished")
    replica.progress.flush()
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


# The chief's training loop: no block is outstanding at the end of an epoch or at a checkpoint.

# The size of a block.


BLOCKS_A_WORKER = 4
"""Least number of blocks per worker up to the next synchronization point: it keeps the wait there short."""


def next_block(left: int, wanted: int, workers: int) -> int:
    """Return the steps of the next block: at least 1, at most `left`, those up to the synchronization point.

    `wanted` steps take long enough that the cost of scheduling them is negligible.
    """
    fair = -(-left // (workers * BLOCKS_A_WORKER))
    return max(1, min(wanted, fair, left))


BLOCKS_AHEAD = 8
"""Limit of outstanding blocks per worker; the others wait for a slow worker's oldest block only at it."""
_SECONDS_BETWEEN_RECORDS = 0.5


class CoordinatorLoop:
    """Trains from a step to the plan's end; `Training.run` does so where all workers step together.

    Variables are read for a checkpoint while no block is outstanding, so it holds exactly its steps.
    """

    def __init__(
        self, training: Training, engine: CoordinatedEngine, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        replica, plan = training.replica, training.plan
        self._replica = replica
        self._workers = replica.task.num_workers
        self._engine = engine
        self._plan = plan
        self._groups = training.groups
        self._settings = json_group("settings", training.settings)
        self._watch = FiniteWatch(training.on_nan, replica.task)
        self._clock = clock
        self._executions = StepsPerExecution(lambda number: number)
        self._checkpoints = CheckpointManager(
            replica, plan, training.selection, training.groups, self._snapshot, training.export
        )
        self._recorder = training.recorder
        self._recorded = (0, 0.0)
        self._last_epoch: Mapping[str, float] = {}

    def run(self, iterators: Any, start_step: int, saved: HostGroups) -> Ending:
        """Train, save, report.

        `iterators` are positioned at `start_step`; `saved` holds all groups of that step's checkpoint, none
        for step 0. Raises OutputFull or OutputUnwritable if a checkpoint can't be written, NotFinite if a
        value that is not finite ends the training, and Preempted after a request to stop, when the reached
        step is saved.
        """
        step, total = start_step, self._plan.total_steps
        self._engine.resume_metrics(saved.get(METRICS, ()))
        self._last_epoch = read_results(saved.get(LAST_EPOCH, ()))
        is_over = self._checkpoints.resume(saved, step)
        self._recorder.begin(step)
        self._recorded = step, self._clock()
        with self._checkpoints.writer.patient():
            while step < total and not is_over:
                periods = self._plan.epoch_steps, self._plan.checkpoint_every
                step = self._meet(iterators, step, next_stop(step, total, periods))
                self._end_epoch(step)
                is_over = self._checkpoints.between_steps(step)
            ending = self._checkpoints.end(step, self._last_epoch)
        self._recorder.end(ending)
        return ending

    def _meet(self, iterators: Any, step: int, until: int) -> int:
        """Run blocks until none is outstanding: at `until`, or earlier after a request to stop."""
        handed_out, most = step, BLOCKS_AHEAD * self._workers
        while True:
            while handed_out < until and self._engine.outstanding < most and not self._replica.stop.requested:
                count = next_block(until - handed_out, self._executions.wanted, self._workers)
                self._engine.hand_out(iterators, count)
                handed_out += count
            if not self._engine.outstanding:
                return step
            block = self._engine.take_back()
            self._watch.look(Found([0, *block.faults]), step)  # the chief comes first and takes no steps
            step += block.steps
            self._executions.record(block.steps, block.seconds)
            self._record(step, is_meeting=step == until)
            self._checkpoints.writer.watch()

    def _record(self, step: int, *, is_meeting: bool) -> None:
        now = self._clock()
        before, at = self._recorded
        if is_meeting or now - at >= _SECONDS_BETWEEN_RECORDS:
            self._recorded = step, now
            self._recorder.record_call(step, step - before, now - at, OwnTime(), self._engine.metrics())

    def _end_epoch(self, step: int) -> None:
        if self._plan.is_epoch_end(step):
            self._last_epoch = self._engine.metrics()
            self._engine.reset()
            self._recorder.record_epoch(step, self._last_epoch)
            self._checkpoints.selection.epoch_ended(step, self._last_epoch)

    def _snapshot(self) -> HostGroups:
        values = read(self._groups)
        self._watch.check_weights(self._groups, values)
        return {
            **values,
            METRICS: self._engine.metric_state,
            LAST_EPOCH: saved_results(self._last_epoch),
            SETTINGS: self._settings,
        }
