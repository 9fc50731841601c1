"""Checkpoints written beside the training: the host copy is quick, the disk is not."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor

from trainjob_trainer.checkpoint.snapshot import HostGroups
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore


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
        """Start a write, after the one before has ended; the arguments are those of `CheckpointStore.save`.

        Raises:
            OutputFull, OutputUnwritable: the one before failed.
        """
        self.wait()
        self._pending = self._pool.submit(self._write, step, epoch, groups, job_uid, spared)

    def check(self) -> None:
        """Raise the failure of a write that has ended, without waiting for one that has not."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the write under way and raise its failure."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(
        self, step: int, epoch: int, groups: HostGroups, job_uid: str, spared: Collection[int]
    ) -> None:
        self._written(self._store.save(step, epoch, groups, job_uid, spared))
