"""`trainjob logs` and `wait`: the logs of a job or of a run on this machine, and its end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from contextlib import aclosing

import click

from trainjob.cli.ending import ABOUT_A_JOB, Exit, command, conclude
from trainjob.cli.options import Duration, cluster_options
from trainjob.cli.screen import LogPrinter, ProgressLine
from trainjob.client.connection import ClusterOptions
from trainjob.client.handle import ClusterJob, JobHandle, find_handle
from trainjob.client.job_logs import (
    LogFollowing,
    LogLine,
    Wanted,
    describe_waits,
    earlier_pods,
    has_log,
    lines_so_far,
    newest_pods,
    own_pods,
)
from trainjob.client.jobs import pods_of
from trainjob.client.presenter import describe_progress, describe_state
from trainjob.client.problems import TimeIsOver
from trainjob.client.runs import LocalJob
from trainjob.client.view import JobView, Outcome, why_no_log
from trainjob.core.pods import Pod
from trainjob.core.wording import printable
from trainjob_trainer.contract.replicas import ROLES


async def follow_logs(job: ClusterJob, printer: LogPrinter, wanted: Wanted, tail: int | None = None) -> Exit:
    """Print the logs until the job is over, then its result.

    Raises:
        NoJob: the job doesn't exist, or was deleted.
    """

    async def on_line(replica: str, line: LogLine) -> None:
        printer.line(replica, line)

    view = await job.view()
    following = LogFollowing(job.api, view, wanted, on_line=on_line, on_note=printer.note, tail=tail)
    return conclude(await following.run())


async def _show(job: ClusterJob, printer: LogPrinter, wanted: Wanted, tail: int | None) -> None:
    """Print the logs so far."""
    view = await job.view()
    pods = newest_pods(own_pods(await pods_of(job.api, job.namespace, job.name), view.uid), wanted)
    if not pods:
        which = "pods" if wanted == Wanted() else "such pods"
        printer.note(f"{job.name} has no {which}: {describe_state(view, ', ')}")
    await _print(job, printer, pods, tail)
    waits = {pod.replica.title: why_no_log(pod) for pod in pods if not has_log(pod)}
    if waits:
        printer.note(f"no log yet of {describe_waits(waits)}")
    if view.outcome is Outcome.FAILED:
        conclude(view)


async def _show_previous(job: ClusterJob, printer: LogPrinter, wanted: Wanted, tail: int | None) -> None:
    """Print the logs of the previous attempt, or of earlier pods if the job restarts in place.

    If no earlier pod is left, it is the end of the log that the status keeps of a failure.
    """
    view = await job.view()
    attempt, first = view.status.attempt or 1, view.status.first_failure
    every = own_pods(await pods_of(job.api, job.namespace, job.name), view.uid)
    pods = [pod for pod in earlier_pods(every, wanted, None if view.in_place else attempt) if has_log(pod)]
    if pods:
        await _print(job, printer, pods, tail)
        return
    lives_on = view.in_place and first is not None and first.pod in {pod.name for pod in every}
    if attempt < 2 or view.is_over or first is None or not first.log_tail or lives_on:
        whole = (
            "; with restarts in place a pod has one log for all its attempts: leave out --previous"
            if view.in_place
            else ""
        )
        printer.note(f"no earlier pods of {job.name} are left (this is attempt {attempt}){whole}")
        return
    gone = f"an earlier pod of {first.rank} is" if view.in_place else f"the pods of attempt {attempt - 1} are"
    printer.note(f"{gone} gone; the end of the log of {first.rank}, which failed first:")
    for line in first.log_tail.splitlines():
        printer.text(first.rank, printable(line))


async def _print(job: ClusterJob, printer: LogPrinter, pods: Iterable[Pod], tail: int | None) -> None:
    async with aclosing(lines_so_far(job.api, pods, job.namespace, tail, printer.note)) as lines:
        async for replica, line in lines:
            printer.line(replica, line)


@command(
    "Print the logs of a job's replicas.",
    *ABOUT_A_JOB,
    Exit.NOBODY_READS,
    good="the logs were printed; with -f: and the job is complete",
    failed="with -f: the job failed",
    no_job="there is no such job; with -f: or it was deleted meanwhile",
)
@click.argument("name", metavar="NAME")
@click.option(
    "-f", "--follow", is_flag=True, help="Print new lines until the job is over, also after restarts."
)
@click.option("--role", type=click.Choice(ROLES), help="Only replicas of this role.")
@click.option("--index", type=click.IntRange(0), help="Only replicas with this index.")
@click.option("-p", "--previous", is_flag=True, help="Logs of the previous pods, as far as they still exist.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines of each replica.")
@click.option("--timestamps", is_flag=True, help="Print when each line was written.")
@cluster_options
def logs(
    name: str,
    follow: bool,
    role: str | None,
    index: int | None,
    previous: bool,
    tail: int | None,
    timestamps: bool,
    where: ClusterOptions,
) -> None:
    """Print the logs of all replicas of the TrainJob NAME, in the order in which lines were written.

    NAME is a run on this machine or, if there is none of that name, a job in the cluster. The logs of a run
    have no timestamps, so they are printed one replica after the other; -p prints the earlier runs of its
    folder.

    With -f the command waits for pods that don't exist yet, continues with the new pods after a restart, and
    prints at the end how the job ended. Notes about the job go to stderr, logs to stdout.
    """
    if follow and previous:
        raise click.UsageError("--previous prints logs that have ended: leave out --follow")

    printer, wanted = LogPrinter(stamps=timestamps), Wanted(role, index)

    async def work() -> Exit:
        async with find_handle(name, where) as job:
            if isinstance(job, LocalJob):
                return await _show_run(job, printer, wanted, follow=follow, previous=previous, tail=tail)
            if follow:
                return await follow_logs(job, printer, wanted, tail)
            await (_show_previous if previous else _show)(job, printer, wanted, tail)
            return Exit.GOOD

    sys.exit(asyncio.run(work()))


async def _show_run(
    run: LocalJob, printer: LogPrinter, wanted: Wanted, *, follow: bool, previous: bool, tail: int | None
) -> Exit:
    """Show the logs of a run on this machine, one replica after the other; while following, as they come."""
    if follow and not (view := await run.view()).is_over:
        printer.note(f"{run.name}: {describe_state(view)}")
    has_lines = False
    lines = run.log_lines(wanted, follow=follow, tail=tail, previous=previous)
    async with aclosing(lines):
        async for replica, text in lines:
            has_lines = True
            printer.text(replica, text)
    view = await run.view()
    if not has_lines and tail != 0:
        when = " before this run" if previous else ""
        printer.note(f"{run.name} has no such logs{when}: {describe_state(view, ', ')}")
    if follow or view.outcome is Outcome.FAILED:
        code = conclude(view)
        return code if follow else Exit.GOOD
    return Exit.GOOD


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
    no_job="there is no such job, or it was deleted meanwhile",
    timeout="the job is not over after --timeout",
)
@click.argument("name", metavar="NAME")
@click.option("--timeout", type=Duration(), help="The time limit, such as 90s, 15m or 1h30m.")
@cluster_options
def wait(name: str, timeout: float | None, where: ClusterOptions) -> None:
    """Wait until the TrainJob NAME has ended; lost connections are opened again.

    NAME is a run on this machine or, if there is none of that name, a job in the cluster. Progress goes to
    stderr. The result goes to stdout if the job is complete, else to stderr.
    """

    async def work() -> Exit:
        progress = ProgressLine()
        async with find_handle(name, where, on_problem=progress.problem) as job:
            return await wait_and_conclude(job, timeout, progress)

    sys.exit(asyncio.run(work()))
