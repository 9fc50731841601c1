"""The training loop of the library: calls of the engine, and what happens between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from trainjob_trainer.checkpoint.snapshot import HostGroups, VariableGroups, json_group, read, read_json
from trainjob_trainer.checkpoint_manager import CheckpointManager, Ending
from trainjob_trainer.distribution.collective import broadcast
from trainjob_trainer.distribution.divergence import WeightsWatch
from trainjob_trainer.early_stopping.selection import Selection
from trainjob_trainer.engine.callbacks import (
    isolate,
    keep_files,
    put_back,
    remembered,
    remembered_weights,
    sees_batches,
)
from trainjob_trainer.engine.engine import Engine
from trainjob_trainer.engine.metric_state import LAST_EPOCH, METRICS, read_results, saved_results
from trainjob_trainer.engine.not_finite import FiniteWatch, OnNan
from trainjob_trainer.engine.steps_per_execution import StepsPerExecution, next_stop
from trainjob_trainer.plan import TrainingPlan
from trainjob_trainer.recorder import Recorder
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.profiler import Profiler
from trainjob_trainer.resume import SETTINGS, saved_settings


@dataclass
class _State:
    """Where the loop stands; the same on every worker."""

    step: int
    executions: StepsPerExecution


MEMORY = "callbacks"
"""Name of the checkpoint's group that holds what callbacks remember."""


class Callbacks:
    """The user's callbacks around calls of many steps, called as Keras's `fit` calls them.

    Data without end is one epoch. Epochs are numbered from 0, batches within their epoch.

    Attributes:
        are_there: whether there are any of the user's.
        see_batches: whether one of them looks at each batch: then a call takes one step, and what they are
            given is of all workers.
    """

    def __init__(
        self, users: Sequence[Any], model: Any, plan: TrainingPlan, *, is_writer: bool, progress_bar: bool
    ) -> None:
        """Call none yet; those of other replicas than the writer write into a private folder."""
        self._users = list(users)
        self._plan = plan
        self._model = model
        self.are_there = bool(self._users)
        self.see_batches = any(sees_batches(one) for one in self._users)
        if not is_writer:
            isolate(self._users)
        self._epoch_steps = plan.epoch_steps or plan.total_steps
        self._list = keras.callbacks.CallbackList(
            self._users,
            add_progbar=progress_bar and is_writer,
            model=model,
            verbose=1,
            epochs=plan.total_epochs or 1,
            steps=self._epoch_steps,
        )
        self._resumed: HostGroups = {}
        self._in_epoch = False

    @property
    def groups(self) -> HostGroups:
        """What a checkpoint is to hold of them."""
        if not self.are_there:
            return {}
        memory = json_group("state", remembered(self._users), default=float)
        return {MEMORY: memory, **remembered_weights(self._users)}

    @property
    def ask_to_stop(self) -> bool:
        """Whether one of them has set `model.stop_training`."""
        return bool(self._model.stop_training)

    def resume(self, saved: HostGroups) -> None:
        """Go on with what they remembered when `saved` was; nothing in it changes nothing."""
        self._resumed = saved
        if saved:
            keep_files(self._users)

    def begin(self) -> None:
        """Training starts, perhaps again."""
        self._model.stop_training = False
        self._list.on_train_begin()
        if MEMORY in self._resumed:
            put_back(self._users, read_json(self._resumed[MEMORY]), self._resumed)
        self._resumed = {}

    def call_begins(self, step: int) -> None:
        """Steps are about to be taken, `step` are done."""
        if not self._in_epoch:
            self._list.on_epoch_begin(self._epoch_of(step))
            self._in_epoch = True
        self._list.on_train_batch_begin(step % self._epoch_steps)

    def call_ends(self, step: int, logs: Mapping[str, float]) -> None:
        """`step` steps are done."""
        self._list.on_train_batch_end((step - 1) % self._epoch_steps, dict(logs))

    def epoch_ends(self, step: int, logs: Mapping[str, float]) -> None:
        """An epoch ends when `step` steps are done; logs are those of all workers."""
        self._list.on_epoch_end(self._epoch_of(step - 1), dict(logs))
        self._in_epoch = False

    def end(self, logs: Mapping[str, float]) -> None:
        """Training has ended; what they do to the weights now is saved."""
        self._list.on_train_end(dict(logs))

    def _epoch_of(self, step: int) -> int:
        return min(step // self._epoch_steps, (self._plan.total_epochs or 1) - 1)


class TrainingLoop:
    """Trains from a step to the plan's end."""

    def __init__(
        self,
        replica: Replica,
        strategy: Any,
        engine: Engine,
        plan: TrainingPlan,
        groups: VariableGroups,
        on_nan: OnNan = OnNan.STOP,
        export: Callable[[HostGroups], None] | None = None,
        selection: Selection | None = None,
        settings: Mapping[str, Any] | None = None,
        compare_weights: bool = True,
        callbacks: Callbacks | None = None,
        recorder: Recorder | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Put the parts together.

        Args:
            replica: this process.
            strategy: of the job.
            engine: takes the steps.
            plan: how many.
            groups: what the checkpoints hold.
            on_nan: what to do when a loss or a gradient is NaN or infinite.
            export: called by the writer with those that are handed over.
            selection: which checkpoint that is, and whether training ends early.
            settings: `resume.settings_of` it.
            compare_weights: whether the workers' weights are compared before each checkpoint.
            callbacks: the user's.
            recorder: of the training.
            clock: replaced by tests.
        """
        self._replica = replica
        self._strategy = strategy
        self._engine = engine
        self._plan = plan
        self._groups = groups
        self._settings = saved_settings(settings or {})
        self._watch = FiniteWatch(on_nan, replica.task)
        if callbacks is None:
            callbacks = Callbacks((), engine.model, plan, is_writer=False, progress_bar=False)
        self._callbacks = callbacks
        self._clock = clock
        weights = WeightsWatch(strategy, replica.task, wanted=compare_weights)
        self._checkpoints = CheckpointManager(
            replica,
            plan,
            selection or Selection(),
            groups,
            self._snapshot,
            export,
            agree=self._writers,
            compare=lambda step: weights.compare(groups, step),
        )
        self._recorder = recorder or Recorder(replica, plan)
        self._profiler = Profiler(replica.task, replica.environment, plan.total_steps)
        self._last_epoch: Mapping[str, float] = {}
        self._is_over = False
        self._stopped_by_callback = ""

    def resume(self, saved: HostGroups, step: int) -> None:
        """Go on at `step` with what the run that wrote its checkpoint knew; nothing in it changes nothing."""
        self._engine.resume_metrics(saved.get(METRICS, ()), is_writer=self._replica.task.is_writer)
        self._last_epoch = read_results(saved.get(LAST_EPOCH, ()))
        self._callbacks.resume(saved)
        self._is_over = self._checkpoints.resume(saved, step)

    def run(self, iterator: Any, start_step: int) -> Ending:
        """Train, save, report.

        Args:
            iterator: endless, positioned at `start_step`.
            start_step: steps done before.

        Raises:
            OutputFull, OutputUnwritable: a checkpoint could not be written.
            Preempted: asked to stop, after saving what was reached.
            NotFinite: a loss, a gradient or a weight is NaN or infinite, and that is to end the training.
            WeightsDiverged, PeerLost: the workers' weights are no longer the same.
        """
        executions = (
            StepsPerExecution.fixed(1) if self._callbacks.see_batches else StepsPerExecution(self._writers)
        )
        state = _State(start_step, executions)
        self._recorder.begin(start_step)
        self._callbacks.begin()
        with self._checkpoints.patient():
            while state.step < self._plan.total_steps and not self._is_over:
                self._call(iterator, state)
                self._end_epoch(state)
                self._is_over = self._checkpoints.between_steps(state.step) or self._is_asked_to_stop(
                    state.step
                )
            self._profiler.finish(state.step)
            self._callbacks.end(self._last_epoch)
            ending = self._checkpoints.end(state.step, self._last_epoch, self._stopped_by_callback)
        self._recorder.end(ending)
        return ending

    def _call(self, iterator: Any, state: _State) -> None:
        periods = (self._plan.epoch_steps, self._plan.checkpoint_every)
        count = state.executions.next_call(
            next_stop(state.step, self._plan.total_steps, periods) - state.step
        )
        self._profiler.between_calls(state.step, count)
        self._callbacks.call_begins(state.step)
        began = self._clock()
        with self._profiler.mark(state.step):
            logs = self._engine.run(iterator, count)
        seconds = self._clock() - began
        self._watch.look(self._engine.found, state.step)
        state.step += count
        state.executions.record(count, seconds)
        logs = {**logs, **self._watch.metrics}
        self._recorder.record_call(state.step, count, seconds, self._engine.own_time, logs)
        if self._callbacks.see_batches:
            logs = {**self._engine.reduced_metrics(), **self._watch.metrics}
        self._callbacks.call_ends(state.step, logs)

    def _writers(self, number: int) -> int:
        return broadcast(self._strategy, self._replica.task, [number])[0]

    def _end_epoch(self, state: _State) -> None:
        if self._plan.is_epoch_end(state.step):
            self._close_epoch(state.step)
            self._checkpoints.epoch_ended(state.step, self._last_epoch)

    def _close_epoch(self, step: int) -> None:
        self._last_epoch = {**self._engine.reduced_metrics(), **self._watch.metrics}
        self._engine.reset()
        self._recorder.record_epoch(step, self._last_epoch)
        self._callbacks.epoch_ends(step, self._last_epoch)

    def _is_asked_to_stop(self, step: int) -> bool:
        """By a callback, where they may ask; the same on all workers."""
        callbacks = self._callbacks
        may_ask = callbacks.see_batches or (callbacks.are_there and self._plan.is_epoch_end(step))
        if not may_ask or step >= self._plan.total_steps or not self._writers(int(callbacks.ask_to_stop)):
            return False
        self._stopped_by_callback = "a callback has set model.stop_training"
        if not self._plan.is_epoch_end(step):
            self._close_epoch(step)
        return True

    def _snapshot(self) -> HostGroups:
        values = read(self._groups)
        self._watch.check_weights(self._groups, values)
        return {
            **values,
            METRICS: self._engine.metric_state,
            LAST_EPOCH: saved_results(self._last_epoch),
            **self._callbacks.groups,
            SETTINGS: self._settings,
        }
