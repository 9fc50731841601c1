"""`trainjob wait`: waits until a job is over, in a cluster or on this machine."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing

import click

from trainjob.cli.ending import ABOUT_A_JOB, Exit, command, conclude
from trainjob.cli.options import Duration, cluster_options
from trainjob.cli.screen import ProgressLine
from trainjob.client.connection import ClusterOptions
from trainjob.client.handle import JobHandle, find_handle
from trainjob.client.presenter import describe_progress
from trainjob.client.problems import TimeIsOver
from trainjob.client.view import JobView


async def wait_and_conclude(job: JobHandle, limit: float | None, progress: ProgressLine) -> Exit:
    """Wait for a job's end with a progress line on stderr, then print its result.

    Args:
        job: the job.
        limit: seconds; None for no limit.
        progress: the line, which also shows the problems of the job's connection.

    Raises:
        NoJob: there is no such job, or it was deleted.
        TimeIsOver: the job is not over after `limit` seconds.
    """
    last: JobView | None = None
    try:
        async with asyncio.timeout(limit), aclosing(job.changes()) as changes:
            async for last in changes:
                if not last.is_over:
                    progress.show(last)
    except TimeoutError:
        known = describe_progress(last) if last else f"{job.name}: no answer from {job.place}"
        raise TimeIsOver(f"not over after {limit or 0:g} s; {known}") from None
    finally:
        progress.clear()
    assert last is not None  # noqa: S101 - a job without a state raises NoJob
    return conclude(last)


@command(
    "Wait until a job is over.",
    *ABOUT_A_JOB,
    good="the job is complete",
    failed="the job failed, or its run on this machine was interrupted",
    no_job="there is no such job, or it was deleted while it was waited for",
    timeout="the job is not over after --timeout",
)
@click.argument("name", metavar="NAME")
@click.option("--timeout", type=Duration(), help="Wait no longer than this, such as 90s, 15m or 1h30m.")
@cluster_options
def wait(name: str, timeout: float | None, where: ClusterOptions) -> None:
    """Wait until the TrainJob NAME has ended, also through lost connections.

    It is a run on this machine, or else a job in the cluster. How far it is goes to stderr; what came of it
    to stdout if it is complete, else to stderr.
    """

    async def work() -> Exit:
        progress = ProgressLine()
        async with find_handle(name, where, on_problem=progress.problem) as job:
            return await wait_and_conclude(job, timeout, progress)

    sys.exit(asyncio.run(work()))
