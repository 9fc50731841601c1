"""How commands that wait for a job end: the last words on the right stream, and the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from trainjob.cli.cluster.ending import describe_deletion, describe_end
from trainjob.cli.cluster.exits import Exit
from trainjob.cli.cluster.jobs import find_job, missing_job
from trainjob.cli.cluster.pace import Pace
from trainjob.cli.cluster.problems import NoJob, TimeIsOver
from trainjob.cli.cluster.progress import ProgressLine, describe_progress
from trainjob.cli.cluster.reading import Job, Outcome
from trainjob.cli.cluster.waiting import Awaited, Reason, wait_for_end
from trainjob.core.wording import printable

if TYPE_CHECKING:
    from trainjob.cli.cluster.server import Server

EXITS = {Outcome.COMPLETE: Exit.GOOD, Outcome.FAILED: Exit.FAILED}
"""What a command that waits makes of the end."""


def conclude(job: Job) -> Exit:
    """Print what came of a job that is over: on stdout if it is good, else on stderr."""
    code = EXITS[job.outcome]
    for line in describe_end(job):
        click.echo(printable(line), err=code is not Exit.GOOD)
    return code


def wait_and_conclude(
    server: Server, namespace: str, name: str, timeout: float | None, pace: Pace | None = None
) -> Exit:
    """Wait for a job's end with a progress line on stderr, then print what came of it.

    Raises:
        NoJob: there is no such job, or it was deleted.
        TimeIsOver: it goes on after `timeout` seconds.
    """
    # Once, without patience: a wrong context would be waited for without end.
    find_job(server, namespace, name)
    progress = ProgressLine()
    try:
        awaited = wait_for_end(server, namespace, name, (pace or Pace()).within(timeout), progress.show)
    finally:
        progress.clear()
    if awaited.reason is Reason.MISSING:
        raise missing_job(server, namespace, name)
    if awaited.reason is Reason.OVER and awaited.job is not None:
        return conclude(awaited.job)
    raise _without_end(awaited, name, timeout or 0)


def _without_end(awaited: Awaited, name: str, timeout: float) -> NoJob | TimeIsOver:
    if awaited.reason is Reason.TIME_OVER:
        last = describe_progress(awaited.job) if awaited.job else f"{name}: no answer from the cluster"
        return TimeIsOver(f"not over after {timeout:g} s; {last}")
    return NoJob(printable(describe_deletion(name, awaited.job, replaced=awaited.reason is Reason.REPLACED)))
