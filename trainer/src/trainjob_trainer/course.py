"""What happens between calls of many steps: checkpoints, whether training goes on, and its end.

The same wherever the steps are taken: by all workers together, or handed out by a chief.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from trainjob_trainer.checkpoint.final import FinalMarker
from trainjob_trainer.checkpoint.snapshot import HostGroups, VariableGroups
from trainjob_trainer.early_stopping.selection import Selection
from trainjob_trainer.engine.metric_state import LAST_EPOCH, read_results
from trainjob_trainer.plan import TrainingPlan
from trainjob_trainer.replica import Replica
from trainjob_trainer.saver import Saver


@dataclass(frozen=True)
class Ending:
    """How a training ended.

    Attributes:
        step: steps done.
        model_step: those of the checkpoint that is handed over.
        metrics: of the last epoch before that checkpoint, over all workers.
        stopped_early: why training ended before its planned end, on the writer; else empty.
    """

    step: int
    model_step: int
    metrics: Mapping[str, float]
    stopped_early: str = ""


def _agreed_alone(number: int) -> int:
    return number


def _not_compared(step: int) -> None:
    """There is nobody to compare with."""


class Course:
    """Checkpoints of one training, and what is decided by them."""

    def __init__(
        self,
        replica: Replica,
        plan: TrainingPlan,
        selection: Selection,
        groups: VariableGroups,
        snapshot: Callable[[], HostGroups],
        export: Callable[[HostGroups], None] | None = None,
        *,
        agree: Callable[[int], int] = _agreed_alone,
        compare: Callable[[int], None] = _not_compared,
    ) -> None:
        """Put the parts together.

        Args:
            replica: this process.
            plan: how many steps.
            selection: which checkpoint counts.
            groups: variables that checkpoints hold.
            snapshot: reads all that a checkpoint is to hold of the training.
            export: called by the writer with what is handed over.
            agree: returns the writer's number on every worker; all call it together.
            compare: called on every worker with the step before its checkpoint; raises if it isn't to be.
        """
        self._replica = replica
        self._plan = plan
        self._selection = selection
        self._groups = groups
        self._snapshot_of_training = snapshot
        self._export = export
        self._agree = agree
        self._compare = compare
        self._saver = Saver(replica)

    def patient(self) -> AbstractContextManager[None]:
        """While steps are taken; as `Saver.patient`."""
        return self._saver.patient()

    def watch(self) -> None:
        """As `Saver.watch`."""
        self._saver.watch()

    def resume(self, saved: HostGroups, step: int) -> bool:
        """Go on at `step`, whose checkpoint holds `saved`.

        Returns:
            Whether there is nothing to go on with: training had ended early, and was cut off in its end.
        """
        self._selection.resume(saved, step)
        if step and step % self._plan.checkpoint_every == 0:
            self._selection.score(step, self._saver.settle)
        return self._selection.is_over() if step else False

    def epoch_ended(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take note of an epoch's metrics, reduced over all workers."""
        self._selection.epoch_ended(step, metrics)

    def between_steps(self, step: int) -> bool:
        """Save if it is time to, and say whether training ends here; the same on all workers.

        Raises:
            OutputFull, OutputUnwritable, Fenced, OutputTaken, Preempted: as `Saver.between_steps`.
            WeightsDiverged, PeerLost: as `WeightsWatch.compare`.
        """
        is_due = step % self._plan.checkpoint_every == 0
        is_boundary = is_due or self._plan.is_epoch_end(step)
        is_stopping = self._replica.stop.requested
        if is_boundary or is_stopping:
            self._selection.look(step, self._saver.settle)
        is_saving, is_stopping = self._agreed(is_due or self._selection.wants_checkpoint(step), is_stopping)
        if is_saving or is_stopping:
            self._compare(step)
        self._saver.between_steps(
            step,
            self._plan.epochs_done(step),
            is_saving,
            self._snapshot,
            self._selection.spared(),
            is_stopping=is_stopping,
        )
        if not is_boundary:
            return False
        if is_due:
            self._selection.score(step, self._saver.settle)
        return self._selection.is_over()

    def end(self, step: int, metrics: Mapping[str, float]) -> Ending:
        """Save the end, choose the checkpoint to hand over, export it, and mark it as final.

        Args:
            step: steps done.
            metrics: of the last epoch.

        Raises:
            OutputFull, OutputUnwritable, Fenced, OutputTaken, Preempted: as `Saver`.
            WeightsDiverged, PeerLost: as `WeightsWatch.compare`.
        """
        is_writer = self._replica.task.is_writer
        self._compare(step)
        trained: HostGroups = {}
        if is_writer:
            epoch = self._plan.epochs_done(step)
            trained = self._saver.save_last(step, epoch, self._snapshot, self._selection.spared())
        # Before the last checkpoint's score is there, which might be an improvement after all.
        is_early = is_writer and step < self._plan.total_steps
        reason = self._selection.reason() if is_early else ""
        chosen = self._selection.choose(step, lambda: self._saver.watch_last(step))
        if chosen != step:
            trained = self._selection.put_back(self._groups, chosen)
            metrics = read_results(trained.get(LAST_EPOCH, ()))
        ending = Ending(step, chosen, dict(metrics), reason)
        if is_writer:
            self._hand_over(ending, trained)
        return ending

    def _agreed(self, is_saving: bool, is_stopping: bool) -> tuple[bool, bool]:
        """What the writer does: the others take part in the comparison before."""
        wishes = self._agree(int(is_saving) + 2 * int(is_stopping))
        return bool(wishes & 1), bool(wishes & 2)

    def _hand_over(self, ending: Ending, trained: HostGroups) -> None:
        if self._export is not None:
            self._export(trained)
        uid, total = self._replica.environment.uid, self._plan.total_steps
        self._saver.mark(FinalMarker(ending.model_step, uid, ending.step, total, ending.stopped_early))

    def _snapshot(self) -> HostGroups:
        return {**self._snapshot_of_training(), **self._selection.groups()}
