"""`trainjob get`: the jobs of a cluster as a table, or one job, or a run on this machine, in full."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from trainjob.cli.documents import dump_stream
from trainjob.cli.ending import NO_CLUSTER_MEANING, Exit, describe_exits, ends_quietly
from trainjob.cli.options import cluster_options
from trainjob.client.connection import ClusterOptions, Connection
from trainjob.client.handle import ClusterJob, find_handle
from trainjob.client.job_logs import own_pods
from trainjob.client.jobs import find_job, follow, job_scope, list_objects, missing_job, pods_of
from trainjob.client.presenter import column_widths, describe_job, format_count, layout
from trainjob.client.problems import describe_problem
from trainjob.client.runs import LocalJob, results_in
from trainjob.client.view import JobView, manifest_of, read_job
from trainjob.cluster.kube.informer import Failed, Gone, Listed, Seen
from trainjob.cluster.protocol import ClusterError
from trainjob.core.wording import printable, short_duration

if TYPE_CHECKING:
    from trainjob.cluster.kube.client import ApiClient


# Jobs as a table: the columns of `kubectl get tj`, plus the total steps.


def job_header(*, wide: bool, namespaces: bool) -> tuple[str, ...]:
    """Return the titles of the columns."""
    columns = ("NAME", "STATE", "WORKERS", "STEP", "ETA", "RESTARTS", "AGE")
    return (*(("NAMESPACE",) if namespaces else ()), *columns, *(("MESSAGE",) if wide else ()))


def job_row(job: JobView, now: datetime, *, wide: bool, namespaces: bool) -> tuple[str, ...]:
    """Return one job's row."""
    status, progress = job.status, job.status.progress
    row = (
        job.name,
        "Terminating" if job.deleting else job.state,
        status.worker.summary if status.worker and status.worker.summary else "",
        format_count(progress.step, progress.total_steps) if progress else "",
        (progress.eta if progress and not job.is_over else None) or "",
        str(status.restarts.counted),
        short_duration(now - job.created_at) if job.created_at else "",
    )
    message = (printable(job.message).replace("\n", " "),) if wide else ()
    return (*((job.namespace,) if namespaces else ()), *row, *message)


_TABLES = (None, "wide")

_EXITS = {
    Exit.GOOD: "printed",
    Exit.NO_JOB: "there is no such job",
    Exit.NO_CLUSTER: NO_CLUSTER_MEANING,
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
    Exit.NOBODY_READS: "nobody reads the output any more",
}


@click.command(epilog=describe_exits(_EXITS), short_help="Show the jobs of a cluster, or one job or run.")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("-o", "--output", type=click.Choice(["wide", "json", "yaml"]), help="How to print it.")
@click.option("-w", "--watch", is_flag=True, help="Then print a row for each change.")
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
@cluster_options
@ends_quietly
def get(
    name: str | None, output: str | None, watch: bool, all_namespaces: bool, where: ClusterOptions
) -> None:
    """Print the TrainJobs of a namespace, or NAME in full: figures, conditions, what failed first, pods.

    NAME is a run on this machine, if there is one of that name, or else a job in the cluster.
    """
    if name and all_namespaces:
        raise click.UsageError("a job has one namespace: name it by -n, without -A")
    if watch and output not in _TABLES:
        raise click.UsageError("-w prints a table; leave out -o, or take -o wide")

    async def show(cluster: Connection) -> None:
        namespace = None if all_namespaces else cluster.namespace
        if watch:
            await _watch(cluster.api, namespace, name, wide=output == "wide")
        elif name and namespace:
            await _print_one(cluster.api, namespace, name, output)
        else:
            await _print_all(cluster.api, namespace, output)

    async def show_one(name: str) -> None:
        async with find_handle(name, where) as job:
            if isinstance(job, LocalJob):
                await _show_run(job, output, watch=watch)
            elif isinstance(job, ClusterJob):
                await show(Connection(job.api, job.namespace))

    if name:
        asyncio.run(show_one(name))
    else:
        where.run(show)


async def _show_run(run: LocalJob, output: str | None, *, watch: bool) -> None:
    if watch:
        widths: tuple[int, ...] | None = None
        async with aclosing(run.changes()) as changes:
            async for view in changes:
                row = job_row(view, datetime.now(UTC), wide=output == "wide", namespaces=False)
                rows = [row] if widths else [job_header(wide=output == "wide", namespaces=False), row]
                widths = widths or column_widths(rows)
                for line in layout(rows, widths):
                    click.echo(line)
        return
    view = await run.view()
    if output in ("json", "yaml"):
        click.echo(_dump(manifest_of(view), output), nl=False)
    elif output == "wide":
        _print_jobs([view], wide=True, namespaces=False)
    else:
        for line in describe_job(view, (), datetime.now(UTC), results_in(run.folder)):
            click.echo(line)


async def _print_one(api: ApiClient, namespace: str, name: str, output: str | None) -> None:
    manifest = await find_job(api, namespace, name)
    if output in ("json", "yaml"):
        click.echo(_dump(manifest, output), nl=False)
        return
    job = read_job(manifest)
    if output == "wide":
        _print_rows([manifest], wide=True, namespaces=False)
        return
    try:
        pods = own_pods(await pods_of(api, namespace, name), job.uid)
    except ClusterError as error:
        click.echo(f"its pods are not shown: {describe_problem(error)}", err=True)
        pods = ()
    for line in describe_job(job, pods, datetime.now(UTC)):
        click.echo(line)


async def _print_all(api: ApiClient, namespace: str | None, output: str | None) -> None:
    answer = await list_objects(api, job_scope(namespace))
    if output in ("json", "yaml"):
        click.echo(_dump(answer, output), nl=False)
        return
    if not answer.get("items"):
        within = f"in namespace {namespace}" if namespace else "in this cluster"
        click.echo(f"there are no TrainJobs {within}", err=True)
        return
    _print_rows(answer["items"], wide=output == "wide", namespaces=namespace is None)


def _print_rows(manifests: Sequence[Mapping[str, Any]], *, wide: bool, namespaces: bool) -> tuple[int, ...]:
    return _print_jobs(map(read_job, manifests), wide=wide, namespaces=namespaces)


def _print_jobs(jobs: Iterable[JobView], *, wide: bool, namespaces: bool) -> tuple[int, ...]:
    now = datetime.now(UTC)
    rows = [job_header(wide=wide, namespaces=namespaces)]
    rows += [job_row(job, now, wide=wide, namespaces=namespaces) for job in jobs]
    for line in layout(rows):
        click.echo(line)
    return column_widths(rows)


async def _watch(api: ApiClient, namespace: str | None, name: str | None, *, wide: bool) -> None:
    first: list[Mapping[str, Any]] = []
    widths: tuple[int, ...] | None = None
    namespaces = namespace is None
    async with aclosing(follow(api, job_scope(namespace, name or ""))) as changes:
        async for change in changes:
            if isinstance(change, Failed):
                click.echo(f"trainjob: {describe_problem(change.error)}; trying again", err=True)
            elif isinstance(change, Listed) and widths is None:
                if name and namespace and not first:
                    raise await missing_job(api, namespace, name)
                widths = _print_rows(first, wide=wide, namespaces=namespaces)
            elif isinstance(change, Seen) and widths is None:
                first.append(change.manifest)
            elif isinstance(change, Seen | Gone) and widths is not None:
                job = read_job(change.manifest)
                row = job_row(job, datetime.now(UTC), wide=wide, namespaces=namespaces)
                if isinstance(change, Gone):
                    row = tuple("Deleted" if i == 1 + namespaces else cell for i, cell in enumerate(row))
                for line in layout([row], widths):
                    click.echo(line)


def _dump(manifest: Mapping[str, Any], output: str) -> str:
    plain = json.loads(json.dumps(manifest))
    (plain.get("metadata") or {}).pop("managedFields", None)
    for item in plain.get("items") or ():
        (item.get("metadata") or {}).pop("managedFields", None)
    return json.dumps(plain, indent=2) + "\n" if output == "json" else dump_stream([plain])
