"""`trainjob list`: the runs on this machine, and the jobs of the cluster."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import click

from trainjob.cli.ending import Exit, describe_exits, ends_quietly
from trainjob.cli.options import cluster_options
from trainjob.client.connection import ClusterOptions, cluster_jobs
from trainjob.client.page import cells_of, layout
from trainjob.client.presenter import format_size
from trainjob.client.problems import ClusterProblem
from trainjob.client.run_record import all_runs
from trainjob.client.runs import LocalJob, folder_size, shown_path
from trainjob.core.wording import short_duration

_EXITS = {
    Exit.GOOD: "printed",
    Exit.NO_CLUSTER: "with options for a cluster: it can't be asked",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
    Exit.NOBODY_READS: "nobody reads the output any more",
}

_TITLES = ("NAME", "STATE", "STEP", "SCORE", "AGE", "SIZE", "PLACE")


@click.command(epilog=describe_exits(_EXITS), short_help="List runs on this machine and jobs in the cluster.")
@click.option("-A", "--all-namespaces", is_flag=True, help="The cluster's jobs of all namespaces.")
@cluster_options
@ends_quietly
def list(all_namespaces: bool, where: ClusterOptions) -> None:  # noqa: A001 - the name of the command
    """Print the runs on this machine, the latest first, then the jobs of the cluster.

    If no option asks for the cluster, it is left out where there is no kubeconfig or it doesn't answer.
    """

    async def work() -> None:
        now = datetime.now(UTC)
        rows = [_TITLES, *await _runs(now)]
        for job in await cluster_jobs(where, all_namespaces=all_namespaces):
            rows.append(_row(cells_of(job, now) | {"PLACE": f"namespace {job.namespace}"}))
        if len(rows) == 1:
            click.echo("there are no runs on this machine: start one with `trainjob run FILE`", err=True)
            return
        for line in layout(rows):
            click.echo(line)

    asyncio.run(work())


def _row(cells: dict[str, str]) -> tuple[str, ...]:
    return tuple(cells.get(title, "") for title in _TITLES)


async def _runs(now: datetime) -> tuple[tuple[str, ...], ...]:
    rows = []
    for run in all_runs():
        try:
            view = await LocalJob(run).view()
        except ClusterProblem:
            continue  # deleted meanwhile
        size = format_size(folder_size(run.folder))
        own = {"AGE": short_duration(now - run.record.began), "SIZE": size, "PLACE": shown_path(run.folder)}
        rows.append(_row(cells_of(view) | own))
    return tuple(rows)
