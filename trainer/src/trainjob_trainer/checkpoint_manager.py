"""What happens between executions of many steps: checkpoints, and the decisions to continue or end.

It is the same whether all workers take the steps together or a chief hands them out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from trainjob_trainer.checkpoint.snapshot import HostGroups, VariableGroups
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore, FinalMarker
from trainjob_trainer.distribution.first_worker import is_gone
from trainjob_trainer.early_stopping import Selection, explain
from trainjob_trainer.engine.metric_state import LAST_EPOCH, read_results
from trainjob_trainer.errors import Preempted
from trainjob_trainer.recipe import TrainingPlan
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.progress import announce, report_storage

# Writes in the background: the host copy is fast, the disk is not.


LATE_SECONDS = 30.0
"""How long training waits for a write before the next one: after that, its storage is away, or too slow."""
_SECONDS_BETWEEN_LOOKS = 0.1


class BackgroundWriter:
    """Writes one checkpoint after the other; the next call of a method raises the failure of a write.

    A write is late while the store waits for its storage, or if it takes long. Of the checkpoints that are
    submitted meanwhile only the newest is kept, and written next. The end of the process ends a write.
    """

    def __init__(self, store: CheckpointStore, written: Callable[[Checkpoint], None]) -> None:
        """Write into `store`; the writing thread calls `written` after each write."""
        self._store = store
        self._written = written
        self._lock = threading.Lock()
        self._next: Callable[[], Checkpoint] | None = None
        self._failure: Exception | None = None
        self._began = 0.0
        self._is_reported = False
        self._is_idle = threading.Event()
        self._is_idle.set()

    @property
    def is_writing(self) -> bool:
        """Whether a write is in progress."""
        return not self._is_idle.is_set()

    @property
    def is_late(self) -> bool:
        """Whether the write in progress is late."""
        takes_long = time.monotonic() - self._began >= LATE_SECONDS
        return self.is_writing and (self._store.patience.is_waiting or takes_long)

    def submit(self, snapshot: Callable[[], HostGroups], save: Callable[[HostGroups], Checkpoint]) -> None:
        """Have `save` write a snapshot once the previous write has ended, or is late."""
        self.wait(until_late=True)
        self._next = None  # no more than two copies at a time
        groups = snapshot()
        with self._lock:
            self._next = lambda: save(groups)
            if not self.is_writing:
                self._began = time.monotonic()
                self._is_idle.clear()
                threading.Thread(target=self._write, name="trainjob-checkpoint", daemon=True).start()

    def check(self) -> None:
        """Raise the failure of a write, without waiting for one in progress."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def wait(self, *, until_late: bool = False) -> None:
        """Wait until nothing is left to write, or the write in progress is late; raise a write's failure."""
        while self.is_writing:
            if self._store.patience.is_waiting:
                self._began = time.monotonic()  # it begins again then
            elif self.is_late and not self._is_reported:
                self._is_reported = True
                takes = f"a checkpoint in {self._store.directory} takes over {LATE_SECONDS:.0f} s"
                report_storage(takes, is_away=False)
            if self.is_late and until_late:
                break
            self._is_idle.wait(_SECONDS_BETWEEN_LOOKS)
        self.check()

    def _write(self) -> None:
        while True:
            with self._lock:
                save, self._next = self._next, None
                self._began = time.monotonic()
                if save is None or self._failure is not None:
                    self._is_idle.set()
                    return
            try:
                self._written(save())
            except Exception as error:  # noqa: BLE001 - the main thread raises it
                self._failure = error
            del save  # with its copy of the variables
            if self._is_reported:
                self._is_reported = False
                report_storage(None)


# The writer's saves: at checkpoints, at the end, and when it is asked to stop.


WRITER_PATIENCE = 4.5
"""Seconds from SIGTERM for the writer to reach a step boundary and save; Ctrl-C waits longer."""
PEER_PATIENCE = 3.5
"""Seconds for which the others continue to step, since the writer's step can't end without them."""
AGENT_PATIENCE = 3600.0
"""An agent knows the grace period and ends the process after it: a long step and a large checkpoint may
use all of it."""
SECONDS_BETWEEN_CHECKS = 10.0
"""Interval of checks for a successor's claim to the output, so that a partitioned writer stops soon."""


class CheckpointWriter:
    """Writes checkpoints of one training; on replicas other than the writer it does almost nothing."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._checked_at = time.monotonic()
        self.write_into(replica.store)

    def write_into(self, store: CheckpointStore) -> None:
        """Write the next checkpoints into another store; none is being written."""
        self._store = store
        self._writer = BackgroundWriter(
            store, lambda checkpoint: self.replica.progress.update(checkpoint_step=checkpoint.step)
        )
        self._saved: int | None = None

    @contextmanager
    def patient(self) -> Iterator[None]:
        """While steps are taken, delay a request to stop until a step boundary.

        An agent asks the writer to stop first, and the others when the writer has ended. It asks them sooner
        if it does not know the writer or is short of time, so they check for the writer themselves.
        """
        task, stop = self.replica.task, self.replica.stop
        own = WRITER_PATIENCE if task.is_writer else PEER_PATIENCE
        stop.patience_seconds = AGENT_PATIENCE if self.replica.environment.has_agent else own
        if not task.is_writer:
            stop.is_futile = lambda: is_gone(task.writer_address)
        is_leaving = False
        try:
            yield
        except BaseException as error:
            is_leaving = isinstance(error, Exception)  # an error says more than the request to stop
            with suppress(Exception):
                self.settle(until_late=True)
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
        """Start a checkpoint if one is due, and end the process if it was asked to stop.

        The others do not end by themselves here: the writer may be within a step that needs them. `epoch`
        counts whole epochs, `spared` are steps of checkpoints that this one doesn't replace, `is_stopping`
        says whether the process had been asked to stop when the workers agreed.

        Raises:
            OutputUnwritable: an earlier write failed.
            Fenced, OutputTaken: another process writes the output now.
            Preempted: asked to stop; the reached step is saved.
        """
        if not self.replica.task.is_writer:
            return
        self.watch()
        if due or is_stopping:
            self._submit(step, epoch, snapshot, spared)
        if is_stopping:
            self.settle()
            raise Preempted(f"{self.replica.task.replica} was asked to stop; saved step {step}")

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writer.is_writing

    def settle(self, *, until_late: bool = False) -> None:
        """Wait until no checkpoint is being written, or it is late, and raise the failure of a write."""
        progress = self.replica.progress
        before = progress.last.state
        if self._writer.is_writing:
            progress.update(state="saving")
        self._writer.wait(until_late=until_late)
        progress.update(state=before)

    def watch(self) -> None:
        """Check whether training may continue, without saving anything.

        Raises an earlier write's failure, and Fenced or OutputTaken if another process writes the output now.
        """
        self._writer.check()
        now = time.monotonic()
        if now - self._checked_at >= SECONDS_BETWEEN_CHECKS:
            self._checked_at = now
            self._store.check_claim()

    def save_last(
        self,
        step: int,
        epoch: int,
        snapshot: Callable[[], HostGroups],
        spared: Collection[int] = (),
        *,
        says_more: bool = False,
    ) -> HostGroups:
        """Save the last step, wait for it, and return what was saved; only the writer calls this.

        Arguments as `between_steps`; with `says_more` it replaces one of the same step. Raises
        OutputUnwritable.
        """
        self.replica.progress.update(state="saving", step=step)
        groups = snapshot()
        if says_more:
            self._saved = None
        self._submit(step, epoch, lambda: groups, spared)
        self.settle()
        return groups

    def mark(self, marker: FinalMarker) -> None:
        """Mark training as ended, once all its results are in place; only the writer calls this.

        It has finished when this process has exited with 0. Outside a job nothing sees that: then it counts
        as finished now.
        """
        store = self._store
        store.mark_ended(marker)
        if self.replica.environment.generation is None:
            store.mark_final(marker)
        best = f"; its result is that of step {marker.step}" if marker.step != marker.ended_at else ""
        announce(f"training {marker.words}{best}; checkpoints in {store.directory}")

    def _submit(
        self, step: int, epoch: int, snapshot: Callable[[], HostGroups], spared: Collection[int]
    ) -> None:
        if self._saved == step:
            return
        self.settle(until_late=True)
        store, uid = self._store, self.replica.environment.uid
        self._writer.submit(snapshot, lambda groups: store.save(step, epoch, groups, uid, spared))
        self._saved = step


@dataclass(frozen=True)
class Ending:
    """How a training ended.

    Attributes:
        model_step: step of the checkpoint that is handed over.
        metrics: of the last epoch before that checkpoint, over all workers.
        stopped_early: why training ended before its planned end, on the writer; else empty.
    """

    step: int
    model_step: int
    metrics: Mapping[str, float]
    stopped_early: str = ""


class CheckpointManager:
    """Checkpoints of one training, and the decisions that depend on them.

    `snapshot` reads all training state that a checkpoint holds; the writer calls `export` with what is
    handed over. All workers call `agree` together; it returns the writer's number. They call `compare` with
    a step before its checkpoint; it raises if there must be none.
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
        agree: Callable[[int], int] = lambda number: number,
        compare: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._replica = replica
        self._plan = plan
        self.selection = selection
        self._groups = groups
        self._snapshot_of_training = snapshot
        self._export = export
        self._agree = agree
        self._compare = compare
        self.writer = CheckpointWriter(replica)

    def resume(self, saved: HostGroups, step: int) -> bool:
        """Resume at `step`, whose checkpoint holds `saved`.

        Return whether there is nothing left to train: training had stopped early, and was interrupted at its
        end.
        """
        self.selection.resume(saved, step)
        if step and step % self._plan.checkpoint_every == 0:
            self.selection.score(step)
        return self.selection.is_over() if step else False

    def between_steps(self, step: int) -> bool:
        """Save if a checkpoint is due, and return whether training ends here; the same on all workers.

        Raises as `CheckpointWriter.between_steps` and `WeightsWatch.compare`.
        """
        is_due = step % self._plan.checkpoint_every == 0
        epoch, spared = self._plan.epochs_done(step), self.selection.spared()
        is_saving = is_due or step in spared
        # The writer's wishes: the others take part in the comparison before it saves.
        agreed = self._agree(int(is_saving) + 2 * int(self._replica.stop.requested))
        if agreed:
            self._compare(step)
            if self.selection.rule.keep_best:
                self.writer.settle()  # each checkpoint may become the result
        self.writer.between_steps(
            step, epoch, bool(agreed & 1), self._snapshot, spared, is_stopping=bool(agreed & 2)
        )
        if is_due and self.selection.scores:
            self.writer.settle()
            self.selection.score(step)
        return (is_due or self._plan.is_epoch_end(step)) and self.selection.is_over()

    def end(
        self, step: int, metrics: Mapping[str, float], reason: str = "", *, is_changed: bool = False
    ) -> Ending:
        """Save the last step, choose the checkpoint to hand over, export it, and mark it as final.

        `metrics` are the last epoch's; `reason` says why training ends before its planned end, unless the
        selection knows. `is_changed` means that weights may have changed since the checkpoint was written,
        by an optimizer that averages them or by callbacks at the end of training. Raises as `between_steps`.
        """
        is_writer = self._replica.task.is_writer
        self._compare(step)
        trained: HostGroups = {}
        if is_writer:
            epoch = self._plan.epochs_done(step)
            spared = self.selection.spared()
            trained = self.writer.save_last(step, epoch, self._snapshot, spared, says_more=is_changed)
        # Before the last checkpoint has its score, which might be an improvement.
        if not is_writer or step >= self._plan.total_steps:
            reason = ""
        elif self.selection.rule.monitor:
            reason = explain(self.selection.decision, self.selection.rule)
        chosen = self.selection.choose(step)
        if chosen != step:
            trained = self.selection.put_back(self._groups, chosen)
            metrics = read_results(trained.get(LAST_EPOCH, ()))
        if is_writer:
            if self._export is not None:
                self._export(trained)
            uid, total = self._replica.environment.uid, self._plan.total_steps
            self.writer.mark(FinalMarker(chosen, uid, step, total, reason))
        return Ending(step, chosen, dict(metrics), reason)

    def _snapshot(self) -> HostGroups:
        return {**self._snapshot_of_training(), **self.selection.groups()}
