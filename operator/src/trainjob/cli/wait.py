"""`trainjob wait`: waits until a job in a cluster is over."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from enum import Enum
from typing import TYPE_CHECKING

import click

from trainjob.cli.ending import Exit, conclude, describe_exits, ends_quietly
from trainjob.cli.options import Duration, cluster_options
from trainjob.cli.screen import ProgressLine
from trainjob.client.connection import ClusterOptions
from trainjob.client.jobs import find_job, follow, job_scope, missing_job
from trainjob.client.presenter import describe_deletion, describe_progress
from trainjob.client.problems import NoJob, TimeIsOver, describe_problem
from trainjob.client.view import JobView, read_job
from trainjob.cluster.kube.informer import Change, Failed, Gone, Listed, Seen

if TYPE_CHECKING:
    from trainjob.cluster.kube.client import ApiClient


# Waiting for the end of a job, through failures of the connection.


class Reason(Enum):
    """Why the waiting is over."""

    OVER = "the job is over"
    DELETED = "the job was deleted"
    REPLACED = "another job of that name is there"
    MISSING = "there is no such job"


class Waiting:
    """Decides after each change whether the waiting is over."""

    def __init__(self) -> None:
        self.job: JobView | None = None

    def take(self, change: Change) -> Reason | None:
        """Return why the waiting is over, or None when it isn't."""
        if isinstance(change, Seen):
            return self._see(read_job(change.manifest))
        if isinstance(change, Gone):
            # The deletion event has the last state: the end of the job may not have been reported before.
            last = read_job(change.manifest)
            if self.job is not None and last.uid != self.job.uid:
                return None
            self.job = last
            return Reason.OVER if last.is_over else Reason.DELETED
        if isinstance(change, Listed) and self.job is None:
            return Reason.MISSING
        return None

    def _see(self, job: JobView) -> Reason | None:
        if self.job is not None and job.uid != self.job.uid:
            return Reason.REPLACED
        self.job = job
        return Reason.OVER if job.is_over else None


async def wait_and_conclude(api: ApiClient, namespace: str, name: str, limit: float | None) -> Exit:
    """Wait for a job's end with a progress line on stderr, then print its result.

    Args:
        api: the API server that has the job.
        namespace: of the job.
        name: of the job.
        limit: seconds; None for no limit.

    Raises:
        ClusterError: watching it is not allowed.
        NoJob: there is no such job, or it was deleted.
        TimeIsOver: the job is not over after `limit` seconds.
    """
    # Once, without retries: otherwise the wait for a wrong context would never end.
    await find_job(api, namespace, name)
    waiting, progress = Waiting(), ProgressLine()
    reason: Reason | None = None
    try:
        async with asyncio.timeout(limit), aclosing(follow(api, job_scope(namespace, name))) as changes:
            async for change in changes:
                reason = waiting.take(change)
                if reason is not None:
                    break
                if isinstance(change, Failed):
                    progress.show(waiting.job, f"{describe_problem(change.error)}; trying again")
                elif isinstance(change, Seen):
                    progress.show(waiting.job)
    except TimeoutError:
        last = describe_progress(waiting.job) if waiting.job else f"{name}: no answer from the cluster"
        raise TimeIsOver(f"not over after {limit or 0:g} s; {last}") from None
    finally:
        progress.clear()
    if reason is Reason.MISSING:
        raise await missing_job(api, namespace, name)
    if reason is Reason.OVER and waiting.job is not None:
        return conclude(waiting.job)
    raise NoJob(describe_deletion(name, waiting.job, replaced=reason is Reason.REPLACED))


_EXITS = {
    Exit.GOOD: "the job is complete",
    Exit.FAILED: "the job failed",
    Exit.NO_JOB: "there is no such job, or it was deleted while it was waited for",
    Exit.NO_CLUSTER: "the cluster can't be asked: no kubeconfig, no answer, no permission, no TrainJob API",
    Exit.TIMEOUT: "the job is not over after --timeout",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
}


@click.command(epilog=describe_exits(_EXITS), short_help="Wait until a job is over.")
@click.argument("name", metavar="NAME")
@click.option("--timeout", type=Duration(), help="Wait no longer than this, such as 90s, 15m or 1h30m.")
@cluster_options
@ends_quietly
def wait(name: str, timeout: float | None, where: ClusterOptions) -> None:
    """Wait until the TrainJob NAME has ended, also through lost connections.

    How far it is goes to stderr; what came of it to stdout if it is complete, else to stderr.
    """
    sys.exit(where.run(lambda cluster: wait_and_conclude(cluster.api, cluster.namespace, name, timeout)))
