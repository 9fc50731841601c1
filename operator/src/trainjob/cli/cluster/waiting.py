"""Waiting for the end of a job, whatever happens to the connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from trainjob.cli.cluster.answers import describe_problem
from trainjob.cli.cluster.following import Change, Gone, Listed, Seen, TimeOver, Troubled, follow
from trainjob.cli.cluster.pace import Pace
from trainjob.cli.cluster.reading import Job, read_job
from trainjob.cli.cluster.resources import TRAINJOBS

if TYPE_CHECKING:
    from trainjob.cli.cluster.server import Server


class Reason(Enum):
    """Why the waiting is over."""

    OVER = "the job is over"
    DELETED = "the job was deleted"
    REPLACED = "another job of that name is there"
    MISSING = "there is no such job"
    TIME_OVER = "the time is over"


@dataclass(frozen=True)
class Awaited:
    """What came of it; `job` is the last that was seen, None if there never was one."""

    reason: Reason
    job: Job | None


class Waiting:
    """Decides from change to change whether there is anything left to wait for."""

    def __init__(self) -> None:
        self.job: Job | None = None

    def take(self, change: Change) -> Reason | None:
        """Return why the waiting is over, or None when it isn't."""
        if isinstance(change, Seen):
            return self._see(read_job(change.manifest))
        if isinstance(change, Gone):
            # The event of its deletion has its last state: it may have ended before anybody was told.
            last = read_job(change.manifest)
            if self.job is not None and last.uid != self.job.uid:
                return None
            self.job = last
            return Reason.OVER if last.is_over else Reason.DELETED
        if isinstance(change, TimeOver):
            return Reason.TIME_OVER
        if isinstance(change, Listed) and self.job is None:
            return Reason.MISSING
        return None

    def _see(self, job: Job) -> Reason | None:
        if self.job is not None and job.uid != self.job.uid:
            return Reason.REPLACED
        self.job = job
        return Reason.OVER if job.is_over else None


def wait_for_end(
    server: Server,
    namespace: str,
    name: str,
    pace: Pace,
    on_change: Callable[[Job | None, str], None],
) -> Awaited:
    """Wait until the job is complete, failed or deleted, or until the deadline.

    Args:
        server: that has the job.
        namespace: of the job.
        name: of the job.
        pace: with the deadline.
        on_change: is given the job whenever it changes, and a word about trouble with the connection.

    Raises:
        Refused: it may not be watched.
    """
    waiting = Waiting()
    for change in follow(server, TRAINJOBS, namespace, {"fieldSelector": f"metadata.name={name}"}, pace):
        if isinstance(change, Troubled):
            on_change(waiting.job, f"{describe_problem(change.problem)}; trying again")
        reason = waiting.take(change)
        if reason is not None:
            return Awaited(reason, waiting.job)
        if isinstance(change, Seen):
            on_change(waiting.job, "")
    raise AssertionError("the last change of all says that the time is over")
