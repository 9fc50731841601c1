"""`trainjob list`: the runs on this machine, and the jobs of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import compress
from pathlib import Path

import click

from trainjob.cli.ending import Exit, command
from trainjob.cli.options import cluster_options
from trainjob.client.connection import ClusterOptions, cluster_jobs
from trainjob.client.page import cells_of, layout
from trainjob.client.presenter import format_size
from trainjob.client.problems import ClusterProblem
from trainjob.client.request import describe
from trainjob.client.run_record import all_runs
from trainjob.client.runs import LocalJob, folder_size, shown_path
from trainjob.client.view import JobView
from trainjob.core.wording import quoted, short_duration
from trainjob_trainer.contract.reports import shorten

_TITLES = ("NAME", "STATE", "STEP", "SCORE", "AGE", "SIZE", "REQUEST", "PLACE")
_LONGEST_REQUEST = 40


@command(
    "List runs on this machine and jobs in the cluster.",
    Exit.INTERRUPTED,
    Exit.NOBODY_READS,
    good="printed",
    no_cluster="with options for a cluster: the cluster can't be used",
)
@click.option("--here", is_flag=True, help="Only the runs on this machine.")
@click.option("--state", help="Only runs and jobs in this state, such as Running, Complete or Failed.")
@click.option("--last", type=click.IntRange(1), metavar="NUMBER", help="Only the newest NUMBER.")
@click.option("-A", "--all-namespaces", is_flag=True, help="The cluster's jobs of all namespaces.")
@cluster_options
def list(  # noqa: A001 - the name of the command
    here: bool, state: str | None, last: int | None, all_namespaces: bool, where: ClusterOptions
) -> None:
    """Print the runs on this machine and the jobs of the cluster, the newest first.

    REQUEST is the script with its arguments, and the trainer's settings. Without an option for the cluster,
    its jobs are left out if there is no kubeconfig or the cluster doesn't respond.
    """
    if here and (all_namespaces or where != ClusterOptions()):
        raise click.UsageError("--here leaves the cluster out: remove -A, -n, --context and --kubeconfig")

    async def work() -> None:
        now = datetime.now(UTC)
        found = [each async for each in _find(where, now, here=here, all_namespaces=all_namespaces)]
        found.sort(key=lambda each: each[0], reverse=True)
        states = [cells_of(job)["STATE"] for _, job, _ in found]
        is_asked_for = [state is None or state.lower() == each.lower() for each in states]
        rows = [[*_TITLES]]
        for began, job, folder in [*compress(found, is_asked_for)][:last]:
            cells = cells_of(job) | {
                "AGE": short_duration(now - began),
                "SIZE": format_size(folder_size(folder)) if folder is not None else "",
                "REQUEST": shorten(quoted(describe(job.request)), _LONGEST_REQUEST),
                "PLACE": shown_path(folder) if folder is not None else f"namespace {job.namespace}",
            }
            rows.append([cells[title] for title in _TITLES])
        if len(rows) > 1:
            for line in layout(rows):
                click.echo(line)
        elif found:
            click.echo(f"none of them is {state}; there are: {', '.join(sorted(set(states)))}", err=True)
        else:
            click.echo("there are no runs on this machine: start one with `trainjob run FILE`", err=True)

    asyncio.run(work())


async def _find(
    where: ClusterOptions, now: datetime, *, here: bool, all_namespaces: bool
) -> AsyncIterator[tuple[datetime, JobView, Path | None]]:
    """Yield of each run and job when it began, its state, and a run's folder."""
    for run in all_runs():
        with suppress(ClusterProblem):  # deleted meanwhile
            yield run.record.began, await LocalJob(run).view(), run.folder
    if not here:
        for job in await cluster_jobs(where, all_namespaces=all_namespaces):
            yield job.created_at or now, job, None
