"""Checkpoints between steps: written in the background, and at the end of the training or of the process.

It is the same whether all workers take the steps together or a chief hands them out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from trainjob_trainer.checkpoint.snapshot import HostGroups
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore
from trainjob_trainer.distribution.first_worker import is_gone
from trainjob_trainer.errors import Preempted
from trainjob_trainer.reporting.progress import report_storage

if TYPE_CHECKING:
    from trainjob_trainer.session import Session

LATE_SECONDS = 30.0
"""How long training waits for a write before the next one: after that, its storage is away, or too slow."""
_SECONDS_BETWEEN_LOOKS = 0.1
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
    """Writes checkpoints of one training; on replicas other than the writer it does almost nothing.

    They are written one after the other in a thread, since the host copy is fast and the disk is not; the
    next call of a method raises the failure of a write. A write is late while the store waits for its
    storage, or if it takes long. Of the checkpoints that come meanwhile only the newest is kept, and written
    next. The end of the process ends a write.
    """

    def __init__(self, session: Session, store: CheckpointStore) -> None:
        self._session = session
        self._checked_at = time.monotonic()
        self._lock = threading.Lock()
        self._next: Callable[[], Checkpoint] | None = None
        self._failure: Exception | None = None
        self._began = 0.0
        self._is_reported = False
        self._is_idle = threading.Event()
        self._is_idle.set()
        self.write_into(store)

    def write_into(self, store: CheckpointStore) -> None:
        """Write the next checkpoints into another store; none is being written."""
        self._store = store
        self._saved: int | None = None

    @contextmanager
    def patient(self) -> Iterator[None]:
        """While steps are taken, delay a request to stop until a step boundary.

        An agent asks the writer to stop first, and the others when the writer has ended. It asks them sooner
        if it does not know the writer or is short of time, so they check for the writer themselves.
        """
        task, stop = self._session.task, self._session.stop
        own = WRITER_PATIENCE if task.is_writer else PEER_PATIENCE
        stop.patience_seconds = AGENT_PATIENCE if self._session.environment.has_agent else own
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
        if not self._session.task.is_writer:
            return
        self.watch()
        if due or is_stopping:
            self._submit(step, epoch, snapshot, spared)
        if is_stopping:
            self.settle()
            raise Preempted(f"{self._session.task.replica} was asked to stop; saved step {step}")

    def save_last(
        self,
        step: int,
        epoch: int,
        snapshot: Callable[[], HostGroups],
        spared: Collection[int] = (),
        *,
        says_more: bool = False,
    ) -> None:
        """Save the last step, and wait for it; only the writer calls this.

        Arguments as `between_steps`; with `says_more` it replaces one of the same step. Raises
        OutputUnwritable.
        """
        self._session.progress.update(state="saving", step=step)
        if says_more:
            self._saved = None
        self._submit(step, epoch, snapshot, spared)
        self.settle()

    def watch(self) -> None:
        """Check whether training may continue, without saving anything.

        Raises an earlier write's failure, and Fenced or OutputTaken if another process writes the output now.
        """
        self._raise_failure()
        now = time.monotonic()
        if now - self._checked_at >= SECONDS_BETWEEN_CHECKS:
            self._checked_at = now
            self._store.check_claim()

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is being written."""
        return not self._is_idle.is_set()

    @property
    def is_late(self) -> bool:
        """Whether the write in progress is late."""
        takes_long = time.monotonic() - self._began >= LATE_SECONDS
        return self.is_writing and (self._store.patience.is_waiting or takes_long)

    def settle(self, *, until_late: bool = False) -> None:
        """Wait until no checkpoint is being written, or it is late, and raise the failure of a write."""
        progress = self._session.progress
        before = progress.last.state
        if self.is_writing:
            progress.update(state="saving")
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
        self._raise_failure()
        progress.update(state=before)

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _submit(
        self, step: int, epoch: int, snapshot: Callable[[], HostGroups], spared: Collection[int]
    ) -> None:
        """Have a snapshot written once the previous write has ended, or is late."""
        if self._saved == step:
            return
        self.settle(until_late=True)
        self._next = None  # no more than two copies at a time
        store, uid, groups = self._store, self._session.environment.uid, snapshot()
        with self._lock:
            self._next = lambda: store.save(step, epoch, groups, uid, spared)
            if not self.is_writing:
                self._began = time.monotonic()
                self._is_idle.clear()
                threading.Thread(target=self._write, name="trainjob-checkpoint", daemon=True).start()
        self._saved = step

    def _write(self) -> None:
        while True:
            with self._lock:
                save, self._next = self._next, None
                self._began = time.monotonic()
                if save is None or self._failure is not None:
                    self._is_idle.set()
                    return
            try:
                self._session.progress.update(checkpoint_step=save().step)
            except Exception as error:  # noqa: BLE001 - the main thread raises it
                self._failure = error
            del save  # with its copy of the variables
            if self._is_reported:
                self._is_reported = False
                report_storage(None)
