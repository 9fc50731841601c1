"""When this replica saves: at checkpoints, at the end, and when it is asked to stop. Only the writer does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainjob_trainer.checkpoint.background import BackgroundWriter
from trainjob_trainer.checkpoint.snapshot import HostGroups
from trainjob_trainer.checkpoint.store import Checkpoint
from trainjob_trainer.errors import Preempted
from trainjob_trainer.replica import Replica
from trainjob_trainer.resume import announce

WRITER_PATIENCE = 4.5
"""Seconds from SIGTERM that the writer has to reach a step boundary and save; less than a Ctrl-C waits."""
PEER_PATIENCE = 3.5
"""Seconds that the others keep stepping with it, since its step can't end without them."""


class Saver:
    """Checkpoints of one training. On replicas other than the writer every method does almost nothing."""

    def __init__(self, replica: Replica) -> None:
        """Save into the replica's store."""
        self._replica = replica
        self._writer = BackgroundWriter(replica.store, self._report)
        self._saved: int | None = None

    @contextmanager
    def patient(self) -> Iterator[None]:
        """While steps are taken, a request to stop waits for a boundary."""
        is_writer = self._replica.task.is_writer
        self._replica.stop.patience_seconds = WRITER_PATIENCE if is_writer else PEER_PATIENCE
        try:
            yield
        finally:
            self._replica.stop.patience_seconds = 0.0

    def between_steps(self, step: int, epoch: int, due: bool, snapshot: Callable[[], HostGroups]) -> None:
        """Start a checkpoint if one is due, and end the process if it has been asked to.

        The others do not end by themselves here: the writer may be within a step that needs them.

        Raises:
            OutputFull, OutputUnwritable: this or an earlier write failed.
            Preempted: asked to stop; what was reached is saved.
        """
        if not self._replica.task.is_writer:
            return
        self._writer.check()
        stopping = self._replica.stop.requested
        if due or stopping:
            self._submit(step, epoch, snapshot)
        if stopping:
            self._writer.wait()
            raise Preempted(f"{self._replica.task.replica} was asked to stop; saved step {step}")

    def finish(self, step: int, epoch: int, snapshot: Callable[[], HostGroups]) -> None:
        """Save the end, wait for it, and mark it as final.

        Raises:
            OutputFull, OutputUnwritable: as above.
        """
        if not self._replica.task.is_writer:
            return
        self._replica.progress.update(state="saving", step=step)
        if self._saved != step:
            self._submit(step, epoch, snapshot)
        self._writer.wait()
        self._replica.store.mark_final(step, self._replica.environment.uid)
        announce(f"training finished at step {step}; checkpoints in {self._replica.store.directory}")

    def _submit(self, step: int, epoch: int, snapshot: Callable[[], HostGroups]) -> None:
        if self._saved == step:
            return
        self._writer.submit(step, epoch, snapshot(), self._replica.environment.uid)
        self._saved = step

    def _report(self, checkpoint: Checkpoint) -> None:
        self._replica.progress.update(checkpoint_step=checkpoint.step)
