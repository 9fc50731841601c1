"""When this replica saves: at checkpoints, at the end, and when it is asked to stop. Only the writer does."""

from __future__ import annotations

import socket
import time
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
AGENT_PATIENCE = 3600.0
"""An agent knows the grace, and ends the process when it is over: a long step and a large checkpoint may
take all of it."""
SECONDS_BETWEEN_CHECKS = 10.0
"""Between looks whether a successor has claimed the output, so that a writer that is cut off stops soon."""
_CONNECT_SECONDS = 0.5


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
        stop.patience_seconds = own if self._replica.environment.epoch is None else AGENT_PATIENCE
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

    def between_steps(self, step: int, epoch: int, due: bool, snapshot: Callable[[], HostGroups]) -> None:
        """Start a checkpoint if one is due, and end the process if it has been asked to.

        The others do not end by themselves here: the writer may be within a step that needs them.

        Raises:
            OutputFull, OutputUnwritable: this or an earlier write failed.
            Fenced, OutputTaken: the output is somebody else's by now.
            Preempted: asked to stop; what was reached is saved.
        """
        if not self._replica.task.is_writer:
            return
        self.watch()
        stopping = self._replica.stop.requested
        if due or stopping:
            self._submit(step, epoch, snapshot)
        if stopping:
            self._writer.wait()
            raise Preempted(f"{self._replica.task.replica} was asked to stop; saved step {step}")

    def watch(self) -> None:
        """Find out whether training may go on, without saving anything.

        Raises:
            OutputFull, OutputUnwritable: an earlier write failed.
            Fenced, OutputTaken: the output is somebody else's by now.
        """
        self._writer.check()
        self._check_claim()

    def finish(
        self,
        step: int,
        epoch: int,
        snapshot: Callable[[], HostGroups],
        export: Callable[[HostGroups], None] | None = None,
    ) -> None:
        """Save the end, wait for it, and mark it as final.

        Args:
            step: steps done.
            epoch: whole epochs done.
            snapshot: reads what is to be saved.
            export: called with it before the mark: a job that is marked as finished has all that it leaves.

        Raises:
            OutputFull, OutputUnwritable: as above.
        """
        if not self._replica.task.is_writer:
            return
        self._replica.progress.update(state="saving", step=step)
        groups = snapshot()
        self._submit(step, epoch, lambda: groups)
        self._writer.wait()
        if export is not None:
            export(groups)
        self._replica.store.mark_final(step, self._replica.environment.uid)
        announce(f"training finished at step {step}; checkpoints in {self._replica.store.directory}")

    def _check_claim(self) -> None:
        now = time.monotonic()
        if now - self._checked_at >= SECONDS_BETWEEN_CHECKS:
            self._checked_at = now
            self._replica.store.check_claim()

    def _submit(self, step: int, epoch: int, snapshot: Callable[[], HostGroups]) -> None:
        if self._saved == step:
            return
        self._writer.submit(step, epoch, snapshot(), self._replica.environment.uid)
        self._saved = step

    def _report(self, checkpoint: Checkpoint) -> None:
        self._replica.progress.update(checkpoint_step=checkpoint.step)


def is_gone(address: str | None) -> bool:
    """Whether nobody listens at `host:port` any more; a host that doesn't answer may still be there."""
    host, _, port = (address or "").rpartition(":")
    try:
        with socket.create_connection((host, int(port)), _CONNECT_SECONDS):
            return False
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
