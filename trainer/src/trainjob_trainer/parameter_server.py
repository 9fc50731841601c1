"""Training with parameter servers: the chief schedules steps, workers take them, servers hold variables."""

from __future__ import annotations

import functools
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from trainjob_trainer.checkpoint.snapshot import HostGroups, NamedArray, assign, json_group, read, read_json
from trainjob_trainer.checkpoint.store import CheckpointStore, FinalMarker
from trainjob_trainer.checkpoint_manager import CheckpointWriter
from trainjob_trainer.distribution.first_worker import explained, is_gone
from trainjob_trainer.distribution.strategy import training_cluster
from trainjob_trainer.edge import exit_now
from trainjob_trainer.environment import is_smoke
from trainjob_trainer.errors import InvalidConfiguration, OutputUnwritable
from trainjob_trainer.identity import DATA, Identity, digest_of_arrays, find_site, key_of
from trainjob_trainer.keras.fit import save_model
from trainjob_trainer.keras.gradients import GradientPath, any_of
from trainjob_trainer.keras.metrics import (
    LAST_EPOCH,
    METRICS,
    MetricState,
    metric_variables,
    read_results,
    saved_results,
    scalars,
)
from trainjob_trainer.keras.model import (
    further_groups,
    optimizers_of,
    tell_unsaved,
    variable_groups,
)
from trainjob_trainer.keras.not_finite import FiniteWatch, Found, OnNan
from trainjob_trainer.keras.pace import StepsPerExecution, next_stop
from trainjob_trainer.keras.pipelines import (
    as_written,
    batch_size_of,
    count_elements,
    in_order,
    shuffle_buffer,
)
from trainjob_trainer.keras.work_time import moment_after
from trainjob_trainer.reporting.progress import add_to_history, announce, by_loss
from trainjob_trainer.resume import (
    Start,
    Verdict,
    agree,
    find_start,
    go_on_with_settings,
    refuse_finished,
    restore,
    settings_of,
)
from trainjob_trainer.session import PlainProcess
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


def serve(process: PlainProcess) -> NoReturn:
    """Serve until the chief has finished, then end the process with exit code 0.

    SIGTERM ends the process at once, from the thread that listens for it: there is nothing to save. Agents
    don't wait for this process: they end it when the chief's process has ended. Raises PortInUse if the
    address of this replica is in use.
    """
    task = process.task
    with explained(task):
        server = tf.distribute.Server(
            training_cluster(task),
            job_name=task.type,
            task_index=task.index,
            protocol="grpc",
            config=_server_config(task),
        )
    announce(f"{task.replica} serves at {task.address}")
    process.progress.update(state="training")
    wait_for_end(lambda: _has_finished(process.trainings.root), lambda: is_gone(task.writer_address))
    del server
    process.progress.update(state="finished")
    process.progress.flush()
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
_SECONDS_BETWEEN_REPORTS = 0.5


@dataclass(frozen=True)
class Course:
    """A training in steps: all of them, those of an epoch, and those between two checkpoints."""

    steps: int
    an_epoch: int
    a_checkpoint: int


class CoordinatorLoop:
    """Trains from a step to the end.

    Variables are read for a checkpoint while no block is outstanding, so it holds exactly its steps.
    """

    def __init__(
        self,
        process: PlainProcess,
        engine: CoordinatedEngine,
        course: Course,
        store: CheckpointStore,
        groups: Mapping[str, Any],
        settings: Mapping[str, Any],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.writer = CheckpointWriter(process, store)
        self.last_epoch: Mapping[str, float] = {}
        self._process = process
        self._engine = engine
        self._course = course
        self._groups = groups
        self._settings = json_group("settings", settings)
        self._watch = FiniteWatch(OnNan(process.setting("on_nan")), process.task)
        self._clock = clock
        self._executions = StepsPerExecution(lambda number: number)
        self._reported = (0, 0.0)

    def run(self, iterators: Any, step: int, saved: HostGroups) -> HostGroups:
        """Train, save, report; return the last checkpoint.

        `iterators` stand at `step`; `saved` holds all groups of that step's checkpoint, none for step 0.
        Raises OutputFull or OutputUnwritable if a checkpoint can't be written, NotFinite if a value that is
        not finite ends the training, and Preempted after a request to stop, when the reached step is saved.
        """
        course, progress = self._course, self._process.progress
        self._engine.resume_metrics(saved.get(METRICS, ()))
        self.last_epoch = read_results(saved.get(LAST_EPOCH, ()))
        self._reported = step, self._clock()
        with self.writer.patient():
            while step < course.steps:
                progress.update(state="training", step=step, epoch=step // course.an_epoch + 1)
                until = next_stop(step, course.steps, (course.an_epoch, course.a_checkpoint))
                step = self._meet(iterators, step, until)
                if step % course.an_epoch == 0:
                    self.last_epoch = self._engine.metrics()
                    self._engine.reset()
                    progress.update(**by_loss(self.last_epoch))
                    add_to_history(self._process.environment, step, self.last_epoch)
                epoch, is_due = step // course.an_epoch, step % course.a_checkpoint == 0
                is_stopping = self._process.stop.requested
                self.writer.between_steps(step, epoch, is_due, self._snapshot, is_stopping=is_stopping)
            return self.writer.save_last(step, step // course.an_epoch, self._snapshot)

    def _meet(self, iterators: Any, step: int, until: int) -> int:
        """Run blocks until none is outstanding: at `until`, or earlier after a request to stop."""
        workers, stop = self._process.task.num_workers, self._process.stop
        handed_out, most = step, BLOCKS_AHEAD * workers
        while True:
            while handed_out < until and self._engine.outstanding < most and not stop.requested:
                count = next_block(until - handed_out, self._executions.wanted, workers)
                self._engine.hand_out(iterators, count)
                handed_out += count
            if not self._engine.outstanding:
                return step
            block = self._engine.take_back()
            self._watch.look(Found([0, *block.faults]), step)  # the chief comes first and takes no steps
            step += block.steps
            self._executions.record(block.steps, block.seconds)
            self._report(step, is_meeting=step == until)
            self.writer.watch()

    def _report(self, step: int, *, is_meeting: bool) -> None:
        now = self._clock()
        before, at = self._reported
        if not is_meeting and now - at < _SECONDS_BETWEEN_REPORTS:
            return
        self._reported = step, now
        a_step, batch = (now - at) / max(step - before, 1), self._process.progress.last.global_batch
        self._process.progress.update(
            step=step,
            step_seconds=a_step,
            examples_per_second=batch / max(a_step, 1e-9) if batch else None,
            **by_loss(self._engine.metrics()),
        )

    def _snapshot(self) -> HostGroups:
        values = read(self._groups)
        self._watch.check_weights(self._groups, values)
        state = {METRICS: self._engine.metric_state, LAST_EPOCH: saved_results(self.last_epoch)}
        return {**values, **state, _SETTINGS: self._settings}


_SETTINGS = "settings"
"""Group of a checkpoint: `settings_of` the training."""


def train(
    process: PlainProcess, strategy: Any, build: Callable[[], Any], data: Any
) -> tuple[Any, int, Mapping[str, float]]:
    """Train as the chief, and return the model, the steps done, and the last epoch's metrics.

    Args:
        process: the chief's, with its settings.
        strategy: connected to all workers.
        build: returns the compiled model, within the strategy's scope.
        data: the training data: a tf.data.Dataset of examples, or of batches, which are cut anew.

    Raises InvalidConfiguration for a model, data or settings that can't be had with parameter servers, and
    the errors of `CoordinatorLoop.run`.
    """
    task, environment, setting = process.task, process.environment, process.setting
    examples, batch, count = _examples(process, data)
    an_epoch, epochs = setting("steps_per_epoch") or max(1, count // batch), setting("epochs")
    if is_smoke(os.environ):
        an_epoch, epochs = 1, 1
    course = Course(epochs * an_epoch, an_epoch, setting("checkpoint_every") or an_epoch)
    model = _built(strategy, build, examples, batch)
    with strategy.scope():
        groups, further = variable_groups(model), further_groups(model)
    known = {"global_batch": batch, "steps_of_an_epoch": an_epoch}
    settings = settings_of(model.optimizer, seed=setting("seed"), **known)
    data_is = {DATA: digest_of_arrays([data])}
    store, start = _place(process, strategy, model, {**settings, **data_is}, course.steps)
    saved = restore(strategy, task, store, start, groups, further)
    if start.verdict is Verdict.ENDED:
        announce("this training has ended before: its result is restored, and the script continues")
        process.progress.update(state="finished", step=start.step, checkpoint_step=start.step)
        process.progress.flush()
        return model, start.step, read_results(saved.get(LAST_EPOCH, ()))
    before = read_json(saved[_SETTINGS]) if _SETTINGS in saved else {}
    settings = go_on_with_settings(before, settings, environment.how_to_start_over, is_writer=True)
    tell_unsaved(model)
    store.clear_final()
    process.progress.update(
        total_steps=course.steps,
        total_epochs=epochs,
        resumed_from=start.step or None,
        global_batch=batch,
    )
    stream = examples
    if count:
        first, offset = divmod(start.step * batch, count)
        shuffles = setting("shuffle")
        stream = shuffled_passes(examples, setting("seed"), first) if shuffles else examples.repeat()
        stream = stream.skip(offset)
    iterators = worker_iterators(strategy, stream, workers=task.num_workers, batch=batch)
    watched = setting("on_nan") == OnNan.STOP.value
    engine = CoordinatedEngine(strategy, model, task.num_workers, watched=watched)
    loop = CoordinatorLoop(process, engine, course, store, {**groups, **further}, settings)
    trained = loop.run(iterators, start.step, saved)
    if setting("export"):
        with tf.device("CPU:0"):  # built again, since servers hold the other's variables
            copy = _built(tf.distribute.get_strategy(), build, examples, batch)
            assign(variable_groups(copy), trained)
        save_model(process, copy.save, lambda path: copy.export(path, verbose=False))
    loop.writer.mark(FinalMarker(course.steps, environment.uid))
    process.progress.update(state="finished", step=course.steps, **by_loss(loop.last_epoch))
    process.progress.flush()
    return model, course.steps, loop.last_epoch


def _examples(process: PlainProcess, data: Any) -> tuple[Any, int, int]:
    """Return the single examples, how many a step takes, and how many there are; 0 if they are endless."""
    if not isinstance(data, tf.data.Dataset):
        raise InvalidConfiguration("train: with parameter servers it must be a tf.data.Dataset, or arrays")
    if process.setting("on_nan") == OnNan.SKIP.value:
        raise InvalidConfiguration(
            'on_nan: "skip" can\'t be had with parameter servers, since metrics that several workers add to '
            'can\'t be put back: use "stop" or "ignore"'
        )
    rows = batch_size_of(data)
    batch = process.setting("global_batch") or rows
    if not batch:
        raise InvalidConfiguration("global_batch: must be given, the number of examples that a step takes")
    examples = data if rows is None else data.unbatch()
    count = int(examples.cardinality())
    is_endless = int(data.cardinality()) == tf.data.INFINITE_CARDINALITY
    if is_endless and not process.setting("steps_per_epoch"):
        raise InvalidConfiguration("steps_per_epoch: must be given, as the training data are endless")
    if is_smoke(os.environ):
        examples, count, is_endless = examples.take(batch).repeat(), 0, True
    if not is_endless and count < 0:
        announce("counting the training examples; `tf.data.experimental.assert_cardinality` saves that")
        count = count_elements(examples)
    if count == 0 and not is_endless:
        raise InvalidConfiguration("train: there are no examples")
    return examples, batch, 0 if is_endless else count


def _built(strategy: Any, build: Callable[[], Any], examples: Any, batch: int) -> Any:
    """Build the model with all variables, which steps on the workers can't create."""
    if isinstance(build, keras.Model) or not callable(build):
        raise InvalidConfiguration(
            "model: with parameter servers it must be a function that returns the compiled model, since the "
            "servers hold its variables"
        )
    with strategy.scope():
        model = build()
        if not isinstance(model, keras.Model) or not model.compiled:
            raise InvalidConfiguration(
                f"model() must return a compiled Keras model, got {type(model).__name__}"
            )
        model._symbolic_build(
            data_batch=tf.nest.map_structure(
                lambda part: tf.TensorSpec([batch, *part.shape], part.dtype), examples.element_spec
            )
        )
        model.optimizer.build(model.trainable_variables)
    return model


def _place(
    process: PlainProcess, strategy: Any, model: Any, settings: Mapping[str, Any], total: int
) -> tuple[CheckpointStore, Start]:
    """Return where this call's checkpoints are, and where it starts; raises as `agree`, `refuse_finished`."""
    trainings, environment, site = process.trainings, process.environment, find_site()
    call = Identity(
        *key_of(site, model),
        particulars={**{name: str(one) for name, one in settings.items()}, **site.variables},
    )
    found = trainings.find(call, environment.reported_checkpoint)
    ended = trainings.store(found.number).ended() if found else None
    if found and found.identity != call and ended and ended.total_steps >= total:
        found = None
    if found is None:
        start = find_start(trainings.root, 0, environment.uid)
        over = environment.how_to_start_over
        refuse_finished(start, trainings.root, total, over, process.progress)
    else:
        found.is_taken = True
        if ended and ended.total_steps < total:
            trainings.close()
    store = trainings.store(found.number if found else trainings.begin(call))
    start = agree(strategy, process.task, store, total, environment.uid, None, environment.spec)
    refuse_finished(start, store, total, environment.how_to_start_over, process.progress)
    return store, start
