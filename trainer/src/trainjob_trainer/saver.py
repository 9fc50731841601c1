"""When this replica saves: at checkpoints, at the end, and when it is asked to stop. Only the writer does."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import NoReturn

from trainjob_trainer.checkpoint.background import BackgroundWriter
from trainjob_trainer.checkpoint.final import FinalMarker
from trainjob_trainer.checkpoint.snapshot import HostGroups
from trainjob_trainer.checkpoint.store import Checkpoint
from trainjob_trainer.distribution.listening import is_gone
from trainjob_trainer.errors import Preempted
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.lines import announce

WRITER_PATIENCE = 4.5
"""Seconds from SIGTERM that the writer has to reach a step boundary and save; less than a Ctrl-C waits."""
PEER_PATIENCE = 3.5
"""Seconds that the others keep stepping with it, since its step can't end without them."""
AGENT_PATIENCE = 3600.0
"""An agent knows the grace, and ends the process when it is over: a long step and a large checkpoint may
take all of it."""
SECONDS_BETWEEN_CHECKS = 10.0
"""Between looks whether a successor has claimed the output, so that a writer that is cut off stops soon."""


class Saver:
    """Checkpoints of one training. On replicas other than the writer every method does almost nothing."""

    def __init__(self, replica: Replica) -> None:
        """Save into the replica's store."""
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

        The others do not end by themselves here: the writer may be within a step that needs them.

        Args:
            step: steps done.
            epoch: whole epochs done.
            due: whether it is time for one.
            snapshot: reads what is to be saved.
            spared: steps of checkpoints that it doesn't replace.
            is_stopping: whether the process had been asked to stop when the others were told.

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
        """Find out whether the process may go on after its last step, which is saved.

        Raises:
            Preempted: it has been asked to stop; else as `watch`.
        """
        self.watch()
        if self._replica.stop.requested:
            self._leave(step)

    def settle(self) -> None:
        """Wait until no checkpoint is being written.

        Raises:
            OutputFull, OutputUnwritable: it couldn't be.
        """
        self._writer.wait()

    def watch(self) -> None:
        """Find out whether training may go on, without saving anything.

        Raises:
            OutputFull, OutputUnwritable: an earlier write failed.
            Fenced, OutputTaken: the output is somebody else's by now.
        """
        self._writer.check()
        self._check_claim()

    def finish(self, step: int, epoch: int, snapshot: Callable[[], HostGroups]) -> None:
        """Save the end, wait for it, and mark it as final.

        Args:
            step: steps done.
            epoch: whole epochs done.
            snapshot: reads what is to be saved.

        Raises:
            OutputFull, OutputUnwritable: as above.
        """
        if self._replica.task.is_writer:
            self.save_last(step, epoch, snapshot)
            self.mark(FinalMarker(step, self._replica.environment.uid))

    def save_last(
        self, step: int, epoch: int, snapshot: Callable[[], HostGroups], spared: Collection[int] = ()
    ) -> HostGroups:
        """Save the end, and wait for it; the arguments are those of `between_steps`. The writer alone does.

        Returns:
            What has been saved.

        Raises:
            OutputFull, OutputUnwritable: as above.
        """
        self._replica.progress.update(state="saving", step=step)
        groups = snapshot()
        self._submit(step, epoch, lambda: groups, spared)
        self.settle()
        return groups

    def mark(self, marker: FinalMarker) -> None:
        """Say that training is finished, with all that it leaves in place. The writer alone does.

        Raises:
            OutputFull, OutputUnwritable: as above.
        """
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
