"""Waits for the end of a job with a progress line, and prints its result."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, TextIO

import click

from trainjob.api import FirstFailure
from trainjob.cli.cluster.errors import Exit, NoJob, TimeIsOver, describe_problem
from trainjob.cli.cluster.jobs import Job, Outcome, find_job, follow, job_scope, missing_job, read_job
from trainjob.cli.cluster.pod_log import LogLine
from trainjob.cli.screen import format_metric, format_rate
from trainjob.cli.summary import ON_CLUSTER, describe_ending, quote_log
from trainjob.cluster.kube.informer import Change, Failed, Gone, Listed, Seen
from trainjob.core.conditions import COMPLETE, FAILED, find_condition
from trainjob.core.names import EVALUATOR
from trainjob.core.wording import printable, short_duration

if TYPE_CHECKING:
    from trainjob.cluster.kube.client import ApiClient


# Log lines and notes.


_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")


def wants_colours(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the stream is a terminal that shows colours, and NO_COLOR is not set."""
    return stream.isatty() and environ.get("TERM") != "dumb" and not environ.get("NO_COLOR")


class LogPrinter:
    """Prints the lines of replicas after their names, each name in its own colour.

    Args:
        stamps: print the time of each line, too.
        colours: None: if stdout shows them.
    """

    def __init__(self, *, stamps: bool = False, colours: bool | None = None) -> None:
        self._stamps = stamps
        self._colours = wants_colours(sys.stdout) if colours is None else colours
        self._names = dict[str, str]()

    def line(self, replica: str, line: LogLine) -> None:
        """Print one line."""
        stamp = f"{line.stamp} " if self._stamps and line.stamp else ""
        self.text(replica, stamp + line.text)

    def text(self, replica: str, text: str) -> None:
        """Print one line as it is."""
        click.echo(f"{self._name(replica)}: {text}", color=self._colours)

    def note(self, text: str) -> None:
        """Print a message about the job on stderr, apart from its logs."""
        click.echo(f"trainjob: {text}", err=True)

    def _name(self, replica: str) -> str:
        if not self._colours:
            return replica
        if replica not in self._names:
            colour = _COLOURS[len(self._names) % len(_COLOURS)]
            self._names[replica] = click.style(replica, fg=colour)
        return self._names[replica]


# The progress line on stderr.


_ERASE = "\r\x1b[K"


def describe_progress(job: Job) -> str:
    """Return `digits: Running: training on 2 workers, step 120/440, 1,250 examples/s, 40s left`."""
    status = job.status
    state = f"{job.name}: {job.state}" + (f": {status.message}" if status.message else "")
    return printable(", ".join([state, *_figures(job)]))


def describe_state(job: Job) -> str:
    """Return the progress without figures, which change all the time."""
    message = job.status.message
    return printable(f"{job.name}: {job.state}" + (f": {message}" if message else ""))


def _figures(job: Job) -> list[str]:
    progress = job.status.progress
    if progress is None or job.is_over:
        return []
    figures = []
    if progress.step is not None:
        of = f"/{progress.total_steps}" if progress.total_steps else ""
        figures.append(f"step {progress.step}{of}")
    if progress.examples_per_second is not None:
        figures.append(f"{format_rate(progress.examples_per_second)} examples/s")
    if progress.eta:
        figures.append(f"{progress.eta} left")
    return figures


def _can_redraw() -> bool:
    # NO_COLOR turns off colours, not the redrawn line.
    return wants_colours(sys.stderr, {"TERM": os.environ.get("TERM", "")})


class ProgressLine:
    """Keeps one line up to date on a terminal; elsewhere prints a line for each new state.

    Args:
        redraws: None: if stderr is a terminal.
    """

    def __init__(self, *, redraws: bool | None = None) -> None:
        self._redraws = _can_redraw() if redraws is None else redraws
        self._told = ""
        self._is_drawn = False

    def show(self, job: Job | None, trouble: str = "") -> None:
        """Show the job, or a problem with the connection."""
        if self._redraws:
            text = trouble or (describe_progress(job) if job else "")
            width = shutil.get_terminal_size().columns - 1
            click.echo(f"{_ERASE}{text[:width]}", err=True, nl=False, color=True)
            self._is_drawn = True
            return
        text = f"trainjob: {trouble}" if trouble else describe_state(job) if job else ""
        if text and text != self._told:
            click.echo(text, err=True)
        self._told = text

    def clear(self) -> None:
        """Erase the line before other output."""
        if self._is_drawn:
            click.echo(_ERASE, err=True, nl=False, color=True)
        self._is_drawn = False


# The final lines about a job: its result, or what failed and what to do.


def describe_end(job: Job) -> tuple[str, ...]:
    """Return the lines for a finished job."""
    lines = _success(job) if job.outcome is Outcome.COMPLETE else _failure(job)
    return tuple(lines)


def describe_deletion(name: str, last: Job | None, *, replaced: bool = False) -> str:
    """Return the sentence for a job that was deleted while a command waited for it."""
    known = f" (last seen: {last.state}{_told(last)})" if last else ""
    again = "; another job of that name is there now" if replaced else ""
    return f"{name} was deleted{known}{again}"


def describe_failure(job: Job, first: FirstFailure, *, advice: bool = True) -> Iterator[str]:
    """Yield the lines about the replica that failed first."""
    node = f", on node {first.node}" if first.node else ""
    yield f"  first failure {first.rank}, {describe_ending(first)}{node}"
    tail = tuple((first.log_tail or "").splitlines())
    yield from quote_log(first.rank, tail)
    role, _, index = first.rank.rpartition("-")
    yield f"  whole log     trainjob logs {job.name} -n {job.namespace} --role {role} --index {index}"
    if advice:
        yield f"  what to do    {ON_CLUSTER.on(first.reason, first.exit_code, first.log_tail)}"


def _told(job: Job) -> str:
    return f", {job.status.message}" if job.status.message else ""


def _success(job: Job) -> Iterator[str]:
    status = job.status
    condition = find_condition(status, COMPLETE)
    message = f": {condition.message}" if condition and condition.message else ""
    yield f"{job.name} is complete{_took(job)}{message}"
    if status.evaluation is not None:
        metrics = ", ".join(format_metric(name, value) for name, value in status.evaluation.metrics.items())
        yield f"  evaluation    step {status.evaluation.step}: {metrics or 'no metrics'}"
    elif _has_evaluator(job):
        yield "  evaluation    none was reported"
    if status.output is not None and status.output.path:
        yield f"  checkpoints   {status.output.path}/checkpoints"


def _failure(job: Job) -> Iterator[str]:
    condition = find_condition(job.status, FAILED)
    yield f"{job.name} failed{_took(job)}: {condition.message if condition else job.status.message or ''}"
    first = job.status.first_failure
    if first is not None and first.rank:
        yield from describe_failure(job, first)
    elif condition:
        yield f"  reason        {condition.reason}"


def _took(job: Job) -> str:
    start, end = job.status.start_time, job.status.completion_time
    return f" after {short_duration(end - start)}" if start and end else ""


def _has_evaluator(job: Job) -> bool:
    role = job.spec.get(EVALUATOR)
    return not isinstance(role, dict) or role.get("replicas", 1) != 0


# Waiting for the end of a job, through failures of the connection.


class Reason(Enum):
    """Why the waiting is over."""

    OVER = "the job is over"
    DELETED = "the job was deleted"
    REPLACED = "another job of that name is there"
    MISSING = "there is no such job"
    TIME_OVER = "the time is over"


@dataclass(frozen=True)
class Awaited:
    """The result of waiting; `job` is its last known state, None if no job was seen."""

    reason: Reason
    job: Job | None


class Waiting:
    """Decides after each change whether the waiting is over."""

    def __init__(self) -> None:
        self.job: Job | None = None

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

    def _see(self, job: Job) -> Reason | None:
        if self.job is not None and job.uid != self.job.uid:
            return Reason.REPLACED
        self.job = job
        return Reason.OVER if job.is_over else None


async def wait_for_end(
    api: ApiClient,
    namespace: str,
    name: str,
    limit: float | None,
    on_change: Callable[[Job | None, str], None],
) -> Awaited:
    """Wait until the job is complete, failed or deleted, or until the time is over.

    Args:
        api: the API server that has the job.
        namespace: of the job.
        name: of the job.
        limit: seconds; None for no limit.
        on_change: is called with the job at each change, and with each problem of the connection.

    Raises:
        ClusterError: watching it is not allowed.
    """
    waiting = Waiting()
    try:
        async with asyncio.timeout(limit), aclosing(follow(api, job_scope(namespace, name))) as changes:
            async for change in changes:
                if isinstance(change, Failed):
                    on_change(waiting.job, f"{describe_problem(change.error)}; trying again")
                reason = waiting.take(change)
                if reason is not None:
                    return Awaited(reason, waiting.job)
                if isinstance(change, Seen):
                    on_change(waiting.job, "")
    except TimeoutError:
        return Awaited(Reason.TIME_OVER, waiting.job)
    raise AssertionError("following a job has no end")


# The end of commands that wait for a job: its result and the exit code.


EXITS = {Outcome.COMPLETE: Exit.GOOD, Outcome.FAILED: Exit.FAILED}
"""Exit codes of commands that wait."""


def conclude(job: Job) -> Exit:
    """Print the result of a finished job: on stdout if it is complete, else on stderr."""
    code = EXITS[job.outcome]
    for line in describe_end(job):
        click.echo(printable(line), err=code is not Exit.GOOD)
    return code


async def wait_and_conclude(api: ApiClient, namespace: str, name: str, limit: float | None) -> Exit:
    """Wait for a job's end with a progress line on stderr, then print its result.

    Raises:
        NoJob: there is no such job, or it was deleted.
        TimeIsOver: the job is not over after `limit` seconds.
    """
    # Once, without retries: otherwise the wait for a wrong context would never end.
    await find_job(api, namespace, name)
    progress = ProgressLine()
    try:
        awaited = await wait_for_end(api, namespace, name, limit, progress.show)
    finally:
        progress.clear()
    if awaited.reason is Reason.MISSING:
        raise await missing_job(api, namespace, name)
    if awaited.reason is Reason.OVER and awaited.job is not None:
        return conclude(awaited.job)
    raise _without_end(awaited, name, limit or 0)


def _without_end(awaited: Awaited, name: str, timeout: float) -> NoJob | TimeIsOver:
    if awaited.reason is Reason.TIME_OVER:
        last = describe_progress(awaited.job) if awaited.job else f"{name}: no answer from the cluster"
        return TimeIsOver(f"not over after {timeout:g} s; {last}")
    return NoJob(printable(describe_deletion(name, awaited.job, replaced=awaited.reason is Reason.REPLACED)))
