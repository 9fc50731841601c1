"""The training loop of the library: calls of the engine, and what happens between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainjob_trainer.checkpoint.snapshot import HostGroups, VariableGroups, read
from trainjob_trainer.checkpoint_manager import Course, Ending
from trainjob_trainer.distribution.collective import broadcast
from trainjob_trainer.distribution.divergence import WeightsWatch
from trainjob_trainer.early_stopping.selection import Selection
from trainjob_trainer.engine.engine import Engine
from trainjob_trainer.engine.metric_state import LAST_EPOCH, METRICS, read_results, saved_results
from trainjob_trainer.engine.not_finite import FiniteWatch, OnNan
from trainjob_trainer.engine.pace import Pace, next_stop
from trainjob_trainer.plan import TrainingPlan
from trainjob_trainer.recorder import Recorder
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.profiler import Profiler


@dataclass
class _State:
    """Where the loop stands; the same on every worker."""

    step: int
    pace: Pace


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
        compare_weights: bool = True,
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
            compare_weights: whether the workers' weights are compared before each checkpoint.
            clock: replaced by tests.
        """
        self._replica = replica
        self._strategy = strategy
        self._engine = engine
        self._plan = plan
        self._groups = groups
        self._watch = FiniteWatch(on_nan, replica.task)
        self._clock = clock
        weights = WeightsWatch(strategy, replica.task, wanted=compare_weights)
        self._course = Course(
            replica,
            plan,
            selection or Selection(),
            groups,
            self._snapshot,
            export,
            agree=self._writers,
            compare=lambda step: weights.compare(groups, step),
        )
        self._recorder = Recorder(replica, plan)
        self._profiler = Profiler(replica.task, replica.environment, plan.total_steps)
        self._last_epoch: Mapping[str, float] = {}
        self._is_over = False

    def resume(self, saved: HostGroups, step: int) -> None:
        """Go on at `step` with what the run that wrote its checkpoint knew; nothing in it changes nothing."""
        self._engine.resume_metrics(saved.get(METRICS, ()), is_writer=self._replica.task.is_writer)
        self._last_epoch = read_results(saved.get(LAST_EPOCH, ()))
        self._is_over = self._course.resume(saved, step)

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
        state = _State(start_step, Pace(self._writers))
        self._recorder.begin(start_step)
        with self._course.patient():
            while state.step < self._plan.total_steps and not self._is_over:
                self._call(iterator, state)
                self._end_epoch(state)
                self._is_over = self._course.between_steps(state.step)
            self._profiler.finish(state.step)
            ending = self._course.end(state.step, self._last_epoch)
        self._recorder.end(ending)
        return ending

    def _call(self, iterator: Any, state: _State) -> None:
        periods = (self._plan.epoch_steps, self._plan.checkpoint_every)
        count = state.pace.next_call(next_stop(state.step, self._plan.total_steps, periods) - state.step)
        self._profiler.between_calls(state.step, count)
        began = self._clock()
        with self._profiler.mark(state.step):
            logs = self._engine.run(iterator, count)
        seconds = self._clock() - began
        self._watch.look(self._engine.found, state.step)
        state.step += count
        state.pace.record(count, seconds)
        self._recorder.record_call(
            state.step, count, seconds, self._engine.own_time, {**logs, **self._watch.metrics}
        )

    def _writers(self, number: int) -> int:
        return broadcast(self._strategy, self._replica.task, [number])[0]

    def _end_epoch(self, state: _State) -> None:
        if self._plan.is_epoch_end(state.step):
            self._last_epoch = {**self._engine.reduced_metrics(), **self._watch.metrics}
            self._engine.reset()
            self._recorder.record_epoch(state.step, self._last_epoch)
            self._course.epoch_ended(state.step, self._last_epoch)

    def _snapshot(self) -> HostGroups:
        values = read(self._groups)
        self._watch.check_weights(self._groups, values)
        return {**values, METRICS: self._engine.metric_state, LAST_EPOCH: saved_results(self._last_epoch)}
