"""The chief's training loop: steps are handed out to the workers, and all meet at epochs and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from trainjob_trainer.checkpoint.snapshot import HostGroups, read
from trainjob_trainer.checkpoint_manager import CheckpointManager, Ending
from trainjob_trainer.engine.metric_state import LAST_EPOCH, METRICS, read_results, saved_results
from trainjob_trainer.engine.not_finite import FiniteWatch, Found
from trainjob_trainer.engine.steps_per_execution import StepsPerExecution, next_stop
from trainjob_trainer.engine.work_time import OwnTime
from trainjob_trainer.parameter_server.engine import CoordinatedEngine
from trainjob_trainer.resume import SETTINGS, saved_settings
from trainjob_trainer.training import Training

# How many steps a worker is handed at a time.


BLOCKS_A_WORKER = 4
"""At least, up to the next point where all wait for each other, so that nobody waits long for the last."""


def next_block(left: int, wanted: int, workers: int) -> int:
    """Return how many steps to hand out next, of `left`, at least 1, up to where all wait for each other.

    `wanted` steps take a good time, which is so long that handing them out costs nothing.
    """
    fair = -(-left // (workers * BLOCKS_A_WORKER))
    return max(1, min(wanted, fair, left))


BLOCKS_AHEAD = 8
"""Blocks outstanding for each worker: a slow one that holds the oldest keeps the others waiting only then."""
_SECONDS_BETWEEN_RECORDS = 0.5


class CoordinatorLoop:
    """Trains from a step to the plan's end, as `Training.run` does where all workers step together.

    Checkpoints are read while no step is under way, so each one is of exactly the steps that it names.
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
        self._settings = saved_settings(training.settings)
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

        `iterators` are positioned at `start_step`; `saved` is all that its checkpoint holds, nothing for the
        first one. Raises OutputFull or OutputUnwritable if a checkpoint can't be written, NotFinite if that
        is to end the training, and Preempted when asked to stop, after saving what was reached.
        """
        step, total = start_step, self._plan.total_steps
        self._engine.resume_metrics(saved.get(METRICS, ()))
        self._last_epoch = read_results(saved.get(LAST_EPOCH, ()))
        is_over = self._checkpoints.resume(saved, step)
        self._recorder.begin(step)
        self._recorded = step, self._clock()
        with self._checkpoints.patient():
            while step < total and not is_over:
                periods = self._plan.epoch_steps, self._plan.checkpoint_every
                step = self._meet(iterators, step, next_stop(step, total, periods))
                self._end_epoch(step)
                is_over = self._checkpoints.between_steps(step)
            ending = self._checkpoints.end(step, self._last_epoch)
        self._recorder.end(ending)
        return ending

    def _meet(self, iterators: Any, step: int, until: int) -> int:
        """Have steps taken until no block is outstanding: at `until`, or sooner when asked to stop."""
        handed_out = step
        while True:
            while self._may_hand_out(handed_out, until):
                count = next_block(until - handed_out, self._executions.wanted, self._workers)
                self._engine.hand_out(iterators, count)
                handed_out += count
            if not self._engine.outstanding:
                return step
            block = self._engine.take_back()
            self._watch.look(Found([0, *block.faults]), step)  # the chief, who takes no steps, is the first
            step += block.steps
            self._executions.record(block.steps, block.seconds)
            self._record(step, is_meeting=step == until)
            self._checkpoints.watch()

    def _may_hand_out(self, handed_out: int, until: int) -> bool:
        is_full = self._engine.outstanding >= BLOCKS_AHEAD * self._workers
        return handed_out < until and not is_full and not self._replica.stop.requested

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
            self._checkpoints.epoch_ended(step, self._last_epoch)

    def _snapshot(self) -> HostGroups:
        values = read(self._groups)
        self._watch.check_weights(self._groups, values)
        return {
            **values,
            METRICS: self._engine.metric_state,
            LAST_EPOCH: saved_results(self._last_epoch),
            SETTINGS: self._settings,
        }
