"""`trainjob get`: the jobs of a cluster as a table, or one job in full."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from trainjob.api import Progress
from trainjob.cli.cluster.errors import Exit, describe_exits, describe_problem
from trainjob.cli.cluster.job_logs import has_log, own_pods, why_no_log
from trainjob.cli.cluster.jobs import (
    Job,
    Outcome,
    find_job,
    follow,
    job_scope,
    list_objects,
    missing_job,
    pods_of,
    read_job,
)
from trainjob.cli.cluster.options import ClusterOptions, cluster_options, ends_quietly
from trainjob.cli.cluster.waiting import describe_failure
from trainjob.cli.files import dump_stream
from trainjob.cli.screen import format_metric, format_rate
from trainjob.cluster.kube.informer import Failed, Gone, Listed, Seen
from trainjob.cluster.protocol import ClusterError
from trainjob.core.failure import used
from trainjob.core.pods import Pod, PodState
from trainjob.core.stragglers import describe, describe_input
from trainjob.core.wording import printable, short_duration

if TYPE_CHECKING:
    from trainjob.cli.cluster.connection import Connection
    from trainjob.cluster.kube.client import ApiClient


# Jobs as a table: the columns of `kubectl get tj`, plus the total steps.


_GAP = "   "


def job_header(*, wide: bool, namespaces: bool) -> tuple[str, ...]:
    """Return the titles of the columns."""
    columns = ("NAME", "STATE", "WORKERS", "STEP", "ETA", "RESTARTS", "AGE")
    return (*(("NAMESPACE",) if namespaces else ()), *columns, *(("MESSAGE",) if wide else ()))


def job_row(job: Job, now: datetime, *, wide: bool, namespaces: bool) -> tuple[str, ...]:
    """Return one job's row."""
    status = job.status
    row = (
        job.name,
        "Terminating" if job.deleting else job.state,
        status.worker.summary if status.worker and status.worker.summary else "",
        _step(job),
        (status.progress.eta if status.progress and not job.is_over else None) or "",
        str(status.restarts.charged),
        short_duration(now - job.created_at) if job.created_at else "",
    )
    message = (printable(status.message or "").replace("\n", " "),) if wide else ()
    return (*((job.namespace,) if namespaces else ()), *row, *message)


def layout(rows: Iterable[Sequence[str]], widths: Sequence[int] = ()) -> Iterator[str]:
    """Yield the rows with aligned columns, at least as wide as `widths`."""
    every = [[cell or "-" for cell in row] for row in rows]
    wide = column_widths(every, widths)
    for row in every:
        padded = [cell.ljust(width) for cell, width in zip(row, wide, strict=True)]
        yield _GAP.join(padded).rstrip()


def column_widths(rows: Sequence[Sequence[str]], least: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the width of each column."""
    columns = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return tuple(max(pair) for pair in zip(columns, least, strict=True)) if least else tuple(columns)


def _step(job: Job) -> str:
    progress = job.status.progress
    if progress is None or progress.step is None:
        return ""
    return f"{progress.step}/{progress.total_steps}" if progress.total_steps else str(progress.step)


# One job in full: state, figures, conditions, first failure, pods.


def draw_job(job: Job, pods: Iterable[Pod], now: datetime) -> tuple[str, ...]:
    """Return the lines.

    Args:
        job: the job.
        pods: the job's own pods.
        now: the current time, ideally by the API server's clock.
    """
    parts = (_header(job, now), _figures(job), _conditions(job, now), _failure(job), _pods(job, pods, now))
    return tuple(printable(line) for part in parts for line in part)


def _header(job: Job, now: datetime) -> Iterator[str]:
    state = f"{job.state}, being deleted" if job.deleting else job.state
    message = f": {job.status.message}" if job.status.message else ""
    yield f"{job.name}   {state}{message}"
    yield f"  namespace     {job.namespace}"
    ages = [f"created {short_duration(now - job.created_at)} ago"] if job.created_at else []
    start, end = job.status.start_time, job.status.completion_time
    if start and end:
        ages.append(f"took {short_duration(end - start)}, over since {short_duration(now - end)}")
    elif start:
        ages.append(f"at it for {short_duration(now - start)}")
    if ages:
        yield f"  time          {'; '.join(ages)}"


def _figures(job: Job) -> Iterator[str]:
    status = job.status
    if status.worker is not None and status.worker.summary:
        yield f"  workers       {status.worker.summary} ready"
    if status.progress is not None and (told := _progress(status.progress, going_on=not job.is_over)):
        yield f"  progress      {told}"
    if not job.is_over:
        yield from (f"  straggler     {describe(straggler)}" for straggler in status.stragglers)
        steps = status.progress or Progress()
        if (waiting := describe_input(steps.step_seconds, steps.input_seconds)) is not None:
            yield f"  input         {waiting}"
    if status.output is not None and (status.output.path or status.output.checkpoint_step is not None):
        step = status.output.checkpoint_step
        of = f"step {step} in " if step is not None else ""
        yield f"  checkpoint    {of}{status.output.path}"
    if status.evaluation is not None:
        yield f"  evaluation    step {status.evaluation.step}: {_metrics(status.evaluation.metrics)}"
    restarts = status.restarts
    most = job.spec.get("maxRestarts", 3)
    good = f", {restarts.refunded} more that training has got beyond" if restarts.refunded else ""
    free = f", {restarts.uncharged} that the job isn't charged for" if restarts.uncharged else ""
    last = f", attempt {status.attempt}" if status.attempt else ""
    yield f"  restarts      {used(restarts)} of {most}{good}{free}{last}"


def _progress(progress: Progress, *, going_on: bool) -> str:
    told = []
    if progress.step is not None:
        of = f" of {progress.total_steps}" if progress.total_steps else ""
        told.append(f"step {progress.step}{of}")
    if progress.epoch is not None:
        told.append(f"epoch {progress.epoch}")
    if going_on and progress.examples_per_second is not None:
        told.append(f"{format_rate(progress.examples_per_second)} examples/s")
    if going_on and progress.eta:
        told.append(f"{progress.eta} left")
    if progress.metrics:
        told.append(_metrics(progress.metrics))
    return ", ".join(told)


def _metrics(metrics: dict[str, str]) -> str:
    return ", ".join(format_metric(name, value) for name, value in metrics.items()) or "no metrics"


def _conditions(job: Job, now: datetime) -> Iterator[str]:
    if not job.status.conditions:
        return
    yield "  conditions"
    rows = [("TYPE", "STATUS", "SINCE", "REASON", "MESSAGE")]
    for c in job.status.conditions:
        rows.append((c.type, c.status, short_duration(now - c.last_transition_time), c.reason, c.message))
    yield from (f"    {line}" for line in layout(rows))


def _failure(job: Job) -> Iterator[str]:
    first = job.status.first_failure
    if first is not None and first.rank:
        yield from describe_failure(job, first, advice=job.outcome is Outcome.FAILED)


def _pods(job: Job, pods: Iterable[Pod], now: datetime) -> Iterator[str]:
    progress = job.status.progress or Progress()
    times = {"STEP TIME": progress.step_seconds, "OWN WORK": progress.work_seconds}
    known = {title: seconds for title, seconds in times.items() if seconds}
    rows = [("REPLICA", "STATE", "READY", *known, "NODE", "AGE", "POD")]
    for pod in pods:
        name, ready = pod.replica.name, "yes" if pod.ready else "no"
        taken = (_seconds(seconds.get(name)) for seconds in known.values())
        age = short_duration(now - pod.created_at) if pod.created_at else ""
        rows.append((name, _state(pod), ready, *taken, pod.node, age, pod.name))
    if len(rows) == 1:
        yield "  pods          none"
        return
    yield "  pods"
    yield from (f"    {line}" for line in layout(rows))


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3g} s"


def _state(pod: Pod) -> str:
    if pod.state is PodState.SUCCEEDED:
        return "finished"
    if pod.state is PodState.FAILED:
        return f"failed ({pod.exit_code if pod.exit_code is not None else pod.reason or 'unknown'})"
    if pod.deleting:
        return "stopping"
    if has_log(pod):
        return "running"
    return why_no_log(pod).partition(":")[0]


_TABLES = (None, "wide")

_EXITS = {
    Exit.GOOD: "printed",
    Exit.NO_JOB: "there is no such job",
    Exit.NO_CLUSTER: "the cluster can't be asked: no kubeconfig, no answer, no permission, no TrainJob API",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
    Exit.NOBODY_READS: "nobody reads the output any more",
}


@click.command(epilog=describe_exits(_EXITS), short_help="Show the TrainJobs of a cluster.")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("-o", "--output", type=click.Choice(["wide", "json", "yaml"]), help="How to print it.")
@click.option("-w", "--watch", is_flag=True, help="Go on with a new row for each change.")
@click.option("-A", "--all-namespaces", is_flag=True, help="The jobs of all namespaces.")
@cluster_options
@ends_quietly
def get(
    name: str | None, output: str | None, watch: bool, all_namespaces: bool, where: ClusterOptions
) -> None:
    """Print the TrainJobs of a namespace, or NAME in full: figures, conditions, what failed first, pods."""
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

    where.run(show)


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
    for line in draw_job(job, pods, datetime.now(UTC)):
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
    now = datetime.now(UTC)
    rows = [job_header(wide=wide, namespaces=namespaces)]
    rows += [job_row(read_job(m), now, wide=wide, namespaces=namespaces) for m in manifests]
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
