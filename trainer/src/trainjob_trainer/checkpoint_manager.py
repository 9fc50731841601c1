"""What happens between calls of many steps: checkpoints, whether training goes on, and its end.

The same wherever the steps are taken: by all workers together, or handed out by a chief.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import NoReturn

from trainjob_trainer.checkpoint.snapshot import HostGroups, VariableGroups
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore, FinalMarker
from trainjob_trainer.distribution.first_worker import is_gone
from trainjob_trainer.early_stopping import Selection
from trainjob_trainer.engine.metric_state import LAST_EPOCH, read_results
from trainjob_trainer.errors import Preempted
from trainjob_trainer.recipe import TrainingPlan
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.progress import announce

# Checkpoints written beside the training: the host copy is quick, the disk is not.


class BackgroundWriter:
    """At most one write at a time; a failure surfaces at the next call of any method."""

    def __init__(self, store: CheckpointStore, written: Callable[[Checkpoint], None]) -> None:
        """Write into `store`; `written` is called from the writing thread after each."""
        self._store = store
        self._written = written
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="trainjob-checkpoint")
        self._pending: Future[None] | None = None

    def submit(
        self, step: int, epoch: int, groups: HostGroups, job_uid: str, spared: Collection[int] = ()
    ) -> None:
        """Start a write, after the one before has ended; arguments as `CheckpointStore.save`.

        Raises OutputFull or OutputUnwritable if the one before failed.
        """
        self.wait()
        self._pending = self._pool.submit(self._write, step, epoch, groups, job_uid, spared)

    def check(self) -> None:
        """Raise the failure of a write that has ended, without waiting for one that has not."""
        if self._pending is not None and self._pending.done():
            self.wait()

    @property
    def is_writing(self) -> bool:
        """Whether a write is under way."""
        return self._pending is not None and not self._pending.done()

    def wait(self) -> None:
        """Wait for the write under way and raise its failure."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(
        self, step: int, epoch: int, groups: HostGroups, job_uid: str, spared: Collection[int]
    ) -> None:
        self._written(self._store.save(step, epoch, groups, job_uid, spared))


# When this replica saves: at checkpoints, at the end, and when it is asked to stop. Only the writer does.


WRITER_PATIENCE = 4.5
"""Seconds from SIGTERM that the writer has to reach a step boundary and save; less than a Ctrl-C waits."""
PEER_PATIENCE = 3.5
"""Seconds that the others keep stepping with it, since its step can't end without them."""
AGENT_PATIENCE = 3600.0
"""An agent knows the grace, and ends the process when it is over: a long step and a large checkpoint may
take all of it."""
SECONDS_BETWEEN_CHECKS = 10.0
"""Between looks whether a successor has claimed the output, so that a writer that is cut off stops soon."""


class CheckpointWriter:
    """Checkpoints of one training. On replicas other than the writer every method does almost nothing."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._writer = BackgroundWriter(replica.store, self._report)
        self._saved: int | None = None
        self._checked_at = time.monotonic()

    @contextmanager
    def patient(self) -> Iterator[None]:
        """While steps are taken, a request to stop waits for a boundary.

        An agent asks the writer first, and the others when it has ended. It asks them sooner where it doesn't
        know of the writer, or where it is short of time; so they look for themselves.
        """
        task, stop = self._replica.task, self._replica.stop
        own = WRITER_PATIENCE if task.is_writer else PEER_PATIENCE
        stop.patience_seconds = AGENT_PATIENCE if self._replica.environment.has_agent else own
        if not task.is_writer:
            stop.is_futile = lambda: is_gone(task.writer_address)
        is_leaving = False
        try:
            yield
        except Exception:
            is_leaving = True  # the process is about to end, with more to say than the request to stop has
            raise
        finally:
            if not is_leaving:
                stop.patience_seconds = 0.0

    def between_steps(
        self,
        step: int,
        epoch: int,
        due: bool,
        snapshot: Callable[[], HostGroups],
        spared: Collection[int] = (),
        *,
        is_stopping: bool,
    ) -> None:
        """Start a checkpoint if one is due, and end the process if it has been asked to.

        The others do not end by themselves here: the writer may be within a step that needs them. `epoch`
        counts whole epochs, `spared` are steps of checkpoints that this one doesn't replace, `is_stopping`
        says whether the process had been asked to stop when the others were told.

        Raises:
            OutputFull, OutputUnwritable: this or an earlier write failed.
            Fenced, OutputTaken: the output is somebody else's by now.
            Preempted: asked to stop; what was reached is saved.
        """
        if not self._replica.task.is_writer:
            return
        self.watch()
        if due or is_stopping:
            self._submit(step, epoch, snapshot, spared)
        if is_stopping:
            self._leave(step)

    def watch_last(self, step: int) -> None:
        """After the last step, which is saved: raise Preempted if asked to stop; else as `watch`."""
        self.watch()
        if self._replica.stop.requested:
            self._leave(step)

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writer.is_writing

    def settle(self) -> None:
        """Wait until no checkpoint is being written, and raise the failure of one."""
        self._writer.wait()

    def watch(self) -> None:
        """Find out whether training may go on, without saving anything.

        Raises an earlier write's failure, and Fenced or OutputTaken if the output is somebody else's by now.
        """
        self._writer.check()
        self._check_claim()

    def finish(self, step: int, epoch: int, snapshot: Callable[[], HostGroups]) -> None:
        """Save the end, wait for it, and mark it as final; arguments and errors as `save_last`."""
        if self._replica.task.is_writer:
            self.save_last(step, epoch, snapshot)
            self.mark(FinalMarker(step, self._replica.environment.uid))

    def save_last(
        self,
        step: int,
        epoch: int,
        snapshot: Callable[[], HostGroups],
        spared: Collection[int] = (),
        *,
        says_more: bool = False,
    ) -> HostGroups:
        """Save the end, wait for it, and return what has been saved. The writer alone does.

        Arguments as `between_steps`; with `says_more` it replaces one of the same step. Raises OutputFull or
        OutputUnwritable.
        """
        self._replica.progress.update(state="saving", step=step)
        groups = snapshot()
        if says_more:
            self._saved = None
        self._submit(step, epoch, lambda: groups, spared)
        self.settle()
        return groups

    def mark(self, marker: FinalMarker) -> None:
        """Say that training is finished, with all that it leaves in place. The writer alone does."""
        store = self._replica.store
        store.mark_final(marker)
        best = f"; its result is that of step {marker.step}" if marker.step != marker.ended_at else ""
        announce(f"training {marker.words}{best}; checkpoints in {store.directory}")

    def _leave(self, step: int) -> NoReturn:
        self.settle()
        raise Preempted(f"{self._replica.task.replica} was asked to stop; saved step {step}")

    def _check_claim(self) -> None:
        now = time.monotonic()
        if now - self._checked_at >= SECONDS_BETWEEN_CHECKS:
            self._checked_at = now
            self._replica.store.check_claim()

    def _submit(
        self, step: int, epoch: int, snapshot: Callable[[], HostGroups], spared: Collection[int]
    ) -> None:
        if self._saved == step:
            return
        self._writer.submit(step, epoch, snapshot(), self._replica.environment.uid, spared)
        self._saved = step

    def _report(self, checkpoint: Checkpoint) -> None:
        self._replica.progress.update(checkpoint_step=checkpoint.step)


@dataclass(frozen=True)
class Ending:
    """How a training ended.

    Attributes:
        model_step: steps of the checkpoint that is handed over.
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


class CheckpointManager:
    """Checkpoints of one training, and what is decided by them.

    `snapshot` reads all that a checkpoint is to hold of the training; the writer calls `export` with what is
    handed over. All workers call `agree` together, which returns the writer's number, and `compare` with the
    step before its checkpoint, which raises if there is to be none.
    """

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
        self._replica = replica
        self._plan = plan
        self._selection = selection
        self._groups = groups
        self._snapshot_of_training = snapshot
        self._export = export
        self._agree = agree
        self._compare = compare
        self._writer = CheckpointWriter(replica)

    def patient(self) -> AbstractContextManager[None]:
        """While steps are taken; as `CheckpointWriter.patient`."""
        return self._writer.patient()

    def watch(self) -> None:
        """As `CheckpointWriter.watch`."""
        self._writer.watch()

    def resume(self, saved: HostGroups, step: int) -> bool:
        """Go on at `step`, whose checkpoint holds `saved`.

        True if there is nothing to go on with: training had ended early, and was cut off in its end.
        """
        self._selection.resume(saved, step)
        if step and step % self._plan.checkpoint_every == 0:
            self._selection.score(step, self._writer.settle)
        return self._selection.is_over() if step else False

    def epoch_ended(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take note of an epoch's metrics, reduced over all workers."""
        self._selection.epoch_ended(step, metrics)

    def between_steps(self, step: int) -> bool:
        """Save if it is time to, and say whether training ends here; the same on all workers.

        Raises as `CheckpointWriter.between_steps` and `WeightsWatch.compare`.
        """
        is_due = step % self._plan.checkpoint_every == 0
        is_boundary = is_due or self._plan.is_epoch_end(step)
        is_stopping = self._replica.stop.requested
        if is_boundary or is_stopping:
            self._selection.look(step, self._writer.settle)
        is_saving, is_stopping = self._agreed(is_due or self._selection.wants_checkpoint(step), is_stopping)
        if is_saving or is_stopping:
            self._compare(step)
        self._writer.between_steps(
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
            self._selection.score(step, self._writer.settle)
        return self._selection.is_over()

    def end(
        self, step: int, metrics: Mapping[str, float], reason: str = "", *, is_changed: bool = False
    ) -> Ending:
        """Save the end, choose the checkpoint to hand over, export it, and mark it as final.

        `metrics` are the last epoch's; `reason` says why training ends before its planned end, unless the
        selection knows. `is_changed`: weights may have been changed since the checkpoint was written, by
        an optimizer that averages them or by callbacks at the end of training. Raises as `between_steps`.
        """
        is_writer = self._replica.task.is_writer
        self._compare(step)
        trained: HostGroups = {}
        if is_writer:
            epoch = self._plan.epochs_done(step)
            spared = self._selection.spared()
            trained = self._writer.save_last(step, epoch, self._snapshot, spared, says_more=is_changed)
        # Before the last checkpoint's score is there, which might be an improvement after all.
        is_early = is_writer and step < self._plan.total_steps
        reason = (self._selection.reason() or reason) if is_early else ""
        chosen = self._selection.choose(step, lambda: self._writer.watch_last(step))
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
        self._writer.mark(FinalMarker(ending.model_step, uid, ending.step, total, ending.stopped_early))

    def _snapshot(self) -> HostGroups:
        return {**self._snapshot_of_training(), **self._selection.groups()}
