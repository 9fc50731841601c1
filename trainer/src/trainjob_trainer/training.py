"""The training loop of `train_and_evaluate`: Keras's own `fit`, and its last callback."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainjob_trainer.checkpoint.snapshot import (
    HostGroups,
    NamedArray,
    VariableGroups,
    json_group,
    read_json,
)
from trainjob_trainer.checkpoint_manager import CheckpointManager, Ending
from trainjob_trainer.distribution.collective import broadcast
from trainjob_trainer.distribution.divergence import WeightsWatch
from trainjob_trainer.early_stopping import Selection
from trainjob_trainer.engine.callbacks import keep_files, remembered
from trainjob_trainer.engine.metric_state import LAST_EPOCH, OverAll, read_results, saved_results
from trainjob_trainer.engine.not_finite import FiniteWatch, OnNan
from trainjob_trainer.engine.steps_per_execution import StepsPerExecution
from trainjob_trainer.engine.work_time import OwnTime
from trainjob_trainer.patches import prepare_fit
from trainjob_trainer.plain.callbacks import LastCallback
from trainjob_trainer.plain.fit_call import FitCall, Seen
from trainjob_trainer.plain.process import PlainProcess, running_as
from trainjob_trainer.plain.writers import isolate
from trainjob_trainer.recipe import TrainingPlan
from trainjob_trainer.recorder import Recorder
from trainjob_trainer.replica import Replica
from trainjob_trainer.resume import SETTINGS

MEMORY = "callbacks"
"""Name of the checkpoint group that holds the state of callbacks."""
STOPPED = "stopped"
"""Name of the checkpoint group that exists once a callback has ended training."""


@dataclass(frozen=True)
class Training:
    """A model, its plan, and the settings of its training.

    Attributes:
        model: built under the strategy, with the restored variables of an earlier run.
        groups: variables that checkpoints hold.
        export: called by the writer with the checkpoint that is handed over.
        settings: in the form of `resume.settings_of`.
        users: the user's callbacks.
    """

    replica: Replica
    strategy: Any
    model: Any
    plan: TrainingPlan
    groups: VariableGroups
    recorder: Recorder
    selection: Selection
    export: Callable[[HostGroups], None] | None = None
    on_nan: OnNan = OnNan.STOP
    settings: Mapping[str, Any] = field(default_factory=dict)
    compares_weights: bool = True
    users: Sequence[Any] = ()
    shows_bar: bool = False

    def run(self, batches: Any, start_step: int, saved: HostGroups, to_read: int = 0) -> Ending:
        """Train, save, report.

        `batches` are endless, distributed, and begin `to_read` steps before `start_step`; `saved` holds all
        groups of that step's checkpoint, none for step 0. Raises NotFinite if a value that is not finite ends
        the training, and the errors of `CheckpointManager.between_steps`.
        """
        is_writer = self.replica.task.is_writer
        call = self._begin_call(start_step, saved)
        call.taken = to_read
        process = PlainProcess(
            self.replica.task, self.replica.environment, self.replica.progress, step=start_step, call=call
        )
        between = BetweenCalls(self, process, call)
        is_at_end = start_step >= self.plan.total_steps or bool(between.stopped_by_callback)
        is_over = between.checkpoints.resume(saved, start_step) or is_at_end
        isolate(self.users)
        if saved:
            keep_files(self.users)
        self.recorder.begin(start_step)
        with between.checkpoints.writer.patient():
            with running_as(process):
                self.model.fit(
                    batches,
                    epochs=call.epoch if is_over else call.epochs,
                    initial_epoch=call.epoch,
                    steps_per_epoch=self.epoch_steps,
                    callbacks=[*self.users, between],
                    shuffle=False,
                    verbose=int(self.shows_bar and is_writer),
                )
            is_changed = bool(self.users) or getattr(self.model.optimizer, "use_ema", False)
            ending = between.checkpoints.end(
                process.step, between.last_epoch, between.stopped_by_callback, is_changed=is_changed
            )
        self.recorder.end(ending)
        return ending

    @property
    def epoch_steps(self) -> int:
        """Steps of an epoch; endless data is one epoch."""
        return self.plan.epoch_steps or self.plan.total_steps

    def agree(self, number: int) -> int:
        """Return the writer's number; all workers call it together."""
        return broadcast(self.strategy, self.replica.task, [number])[0]

    def _begin_call(self, step: int, saved: HostGroups) -> FitCall:
        prepare_fit()
        epoch, batches = divmod(step, self.epoch_steps)
        seen = Seen.by_any(self.strategy, self.replica.task, self.users)
        task = self.replica.task
        return FitCall(
            number=1,
            epochs=self.plan.total_epochs or 1,
            metrics=OverAll(self.strategy, self.model),
            every=self.plan.checkpoint_every,
            last_step=self.plan.total_steps,
            epoch=epoch,
            midway=(epoch, batches),
            any_step=True,
            seen=seen,
            executions=None if seen.batches else StepsPerExecution(self.agree),
            watch=FiniteWatch(self.on_nan, task),
            weights=WeightsWatch(self.strategy, task, wanted=self.compares_weights),
            remembered=read_json(saved[MEMORY]) if MEMORY in saved else (),
            resumed_groups=saved,
        )


class BetweenCalls(LastCallback):
    """The last callback of `train_and_evaluate`, whose plan and selection decide whether training continues.

    `last_epoch` has the metrics of the last epoch over all workers; `stopped_by_callback` is the reason if
    one of the user's callbacks ends training early.
    """

    def __init__(self, training: Training, process: PlainProcess, call: FitCall) -> None:
        super().__init__(process, call, training.users)
        self._training = training
        self._plan = training.plan
        self._settings = json_group("settings", training.settings)
        self._metrics: Sequence[NamedArray] = ()
        self._is_within_epoch = False
        self._began = 0.0
        saved = call.resumed_groups
        self.last_epoch: Mapping[str, float] = read_results(saved.get(LAST_EPOCH, ()))
        self.stopped_by_callback = ""
        if STOPPED in saved:
            before = read_json(saved[STOPPED])
            is_same_end = before["totalSteps"] == training.plan.total_steps
            self.stopped_by_callback = before["reason"] if is_same_end else ""
        self._is_to_stop = False
        self.checkpoints = CheckpointManager(
            training.replica,
            training.plan,
            training.selection,
            training.groups,
            self._saved,
            training.export,
            agree=training.agree,
            compare=self._before_checkpoint,
        )

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras."""
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Called by Keras."""
        seconds = time.perf_counter() - self._began
        before, step = self.process.step, self.call.epoch * self._training.epoch_steps + batch + 1
        self.process.step = step
        own = self.call.own_time or OwnTime()
        self._training.recorder.record_call(step, step - before, seconds, own, self.figures(logs))
        if not self._plan.is_epoch_end(step):
            self._is_within_epoch = True
            self._decide(may_ask=self.call.seen.batches)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras, also if training ends within an epoch."""
        self._is_within_epoch, step = False, self.process.step
        if self._plan.is_epoch_end(step) or self.stopped_by_callback:
            self.last_epoch = self.figures(logs)
            self._training.recorder.record_epoch(step, self.last_epoch)
        if self._plan.is_epoch_end(step):
            self.checkpoints.selection.epoch_ended(step, self.last_epoch)
            self._decide(may_ask=self.call.seen.epochs)

    def _decide(self, *, may_ask: bool) -> None:
        """Save a checkpoint or stop training if it is time; all workers decide the same."""
        self._is_to_stop |= bool(self.model.stop_training)
        goes_on = self.process.step < self._plan.total_steps
        if may_ask and goes_on and self._training.agree(int(self._is_to_stop)):
            self.stopped_by_callback = "a callback has set model.stop_training"
        is_over = self.checkpoints.between_steps(self.process.step)
        self.model.stop_training = is_over or bool(self.stopped_by_callback) or not goes_on

    def _before_checkpoint(self, step: int) -> None:
        self.compare_weights(step)
        self._metrics = self.call.metrics.state() if self._is_within_epoch else ()

    def _saved(self) -> HostGroups:
        memory = {MEMORY: json_group("state", remembered(self.users), default=float)} if self.users else {}
        if self.stopped_by_callback:
            stopped = {"reason": self.stopped_by_callback, "totalSteps": self._plan.total_steps}
            memory[STOPPED] = json_group("state", stopped, default=str)
        last = saved_results(self.last_epoch)
        return {**self.snapshot(self._metrics), LAST_EPOCH: last, **memory, SETTINGS: self._settings}
