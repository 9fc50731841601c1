"""`trainjob get`: the jobs of a cluster as a table, or one job, or a run on this machine, in full."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from trainjob.cli.documents import dump_stream
from trainjob.cli.ending import ABOUT_A_JOB, Exit, command, print_lines
from trainjob.cli.options import cluster_options
from trainjob.client.connection import ClusterOptions, Connection
from trainjob.client.handle import ClusterJob, find_handle
from trainjob.client.job_logs import own_pods
from trainjob.client.jobs import find_job, follow, job_scope, list_objects, missing_job, pods_of
from trainjob.client.page import cells_of, column_widths, describe_job, layout
from trainjob.client.problems import describe_problem
from trainjob.client.view import JobView, manifest_of, read_job
from trainjob.cluster.kube.informer import Failed, Gone, Listed, Seen
from trainjob.cluster.protocol import ClusterError
from trainjob.core.pods import Pod

if TYPE_CHECKING:
    from trainjob.cluster.kube.client import ApiClient


class JobTable:
    """A table of jobs, whose columns are those of `kubectl get tj`; its first rows set the widths."""

    def __init__(self, *, wide: bool, namespaces: bool) -> None:
        columns = ("NAME", "STATE", "WORKERS", "STEP", "ETA", "RESTARTS", "AGE")
        self.titles = (*(["NAMESPACE"] if namespaces else ()), *columns, *(["MESSAGE"] if wide else ()))
        self._widths: tuple[int, ...] = ()

    def rows(self, jobs: Iterable[JobView], now: datetime, **changed: str) -> list[tuple[str, ...]]:
        """Return a row for each job, with the given cells changed."""
        return [tuple((cells_of(job, now) | changed)[title] for title in self.titles) for job in jobs]

    def print(self, *jobs: JobView, **changed: str) -> None:
        """Print the rows, the first time below the titles."""
        rows = self.rows(jobs, datetime.now(UTC), **changed)
        rows = rows if self._widths else [self.titles, *rows]
        self._widths = self._widths or column_widths(rows)
        for line in layout(rows, self._widths):
            click.echo(line)


@command("Show the jobs of a cluster, or one job or run.", *ABOUT_A_JOB, Exit.NOBODY_READS, good="printed")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("-o", "--output", type=click.Choice(["wide", "json", "yaml"]), help="The output format.")
@click.option("-w", "--watch", is_flag=True, help="Then print a row for each change.")
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
@cluster_options
def get(
    name: str | None, output: str | None, watch: bool, all_namespaces: bool, where: ClusterOptions
) -> None:
    """Print the TrainJobs of a namespace, or NAME in full: progress, conditions, first failure, pods.

    NAME is a run on this machine or, if there is none of that name, a job in the cluster.
    """
    if name and all_namespaces:
        raise click.UsageError("-A is for all jobs; for one job name its namespace with -n")
    if watch and output not in (None, "wide"):
        raise click.UsageError("-w prints a table; leave out -o, or use -o wide")
    table = JobTable(wide=output == "wide", namespaces=all_namespaces)

    async def show_all(cluster: Connection) -> None:
        namespace = None if all_namespaces else cluster.namespace
        if watch:
            await _watch(cluster.api, namespace, None, table)
            return
        listed = await list_objects(cluster.api, job_scope(namespace))
        if output in ("json", "yaml"):
            click.echo(_dump(listed, output), nl=False)
        elif listed.get("items"):
            table.print(*map(read_job, listed["items"]))
        else:
            within = f"in namespace {namespace}" if namespace else "in this cluster"
            click.echo(f"there are no TrainJobs {within}", err=True)

    async def show_one(name: str) -> None:
        async with find_handle(name, where) as job:
            if watch and isinstance(job, ClusterJob):
                await _watch(job.api, job.namespace, name, table)
            elif watch:
                async with aclosing(job.changes()) as changes:
                    async for view in changes:
                        table.print(view)
            elif output in ("json", "yaml"):
                if isinstance(job, ClusterJob):
                    stored = await find_job(job.api, job.namespace, name)
                else:
                    stored = manifest_of(await job.view())
                click.echo(_dump(stored, output), nl=False)
            elif output == "wide":
                table.print(await job.view())
            else:
                view, pods = await job.view(), tuple[Pod, ...]()
                if isinstance(job, ClusterJob):
                    try:
                        pods = own_pods(await pods_of(job.api, job.namespace, name), view.uid)
                    except ClusterError as error:
                        print_lines([f"its pods are not shown: {describe_problem(error)}"], err=True)
                for line in describe_job(view, pods, datetime.now(UTC)):
                    click.echo(line)

    if name:
        asyncio.run(show_one(name))
    else:
        where.run(show_all)


async def _watch(api: ApiClient, namespace: str | None, name: str | None, table: JobTable) -> None:
    first: list[JobView] = []
    is_listed = False
    async with aclosing(follow(api, job_scope(namespace, name or ""))) as changes:
        async for change in changes:
            if isinstance(change, Failed):
                print_lines([f"trainjob: {describe_problem(change.error)}; trying again"], err=True)
            elif isinstance(change, Listed) and not is_listed:
                if name and namespace and not first:
                    raise await missing_job(api, namespace, name)
                table.print(*first)
                is_listed = True
            elif isinstance(change, Seen) and not is_listed:
                first.append(read_job(change.manifest))
            elif isinstance(change, Seen):
                table.print(read_job(change.manifest))
            elif isinstance(change, Gone) and is_listed:
                table.print(read_job(change.manifest), STATE="Deleted")


def _dump(manifest: Mapping[str, Any], output: str) -> str:
    plain = json.loads(json.dumps(manifest))
    (plain.get("metadata") or {}).pop("managedFields", None)
    for item in plain.get("items") or ():
        (item.get("metadata") or {}).pop("managedFields", None)
    return json.dumps(plain, indent=2) + "\n" if output == "json" else dump_stream([plain])
