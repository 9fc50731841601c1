"""`trainjob get`: the jobs of a cluster as a table, or one of them in full."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from trainjob.cli.cluster.answers import ServerProblem, describe_problem
from trainjob.cli.cluster.exits import Exit, describe_exits
from trainjob.cli.cluster.following import Gone, Listed, Seen, Troubled, follow
from trainjob.cli.cluster.jobs import find_job, missing_job, pods_of
from trainjob.cli.cluster.picture import draw_job
from trainjob.cli.cluster.reading import read_job
from trainjob.cli.cluster.resources import TRAINJOBS
from trainjob.cli.cluster.selection import own_pods
from trainjob.cli.cluster.table import column_widths, job_header, job_row, layout
from trainjob.cli.cluster.where import Where, cluster_options, ends_quietly
from trainjob.cli.yaml_stream import dump_stream

if TYPE_CHECKING:
    from trainjob.cli.cluster.server import Server

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
def get(name: str | None, output: str | None, watch: bool, all_namespaces: bool, where: Where) -> None:
    """Print the TrainJobs of a namespace, or NAME in full: figures, conditions, what failed first, pods."""
    if name and all_namespaces:
        raise click.UsageError("a job has one namespace: name it by -n, without -A")
    if watch and output not in _TABLES:
        raise click.UsageError("-w prints a table; leave out -o, or take -o wide")
    with where.connected() as cluster:
        namespace = None if all_namespaces else where.namespace or cluster.namespace
        if watch:
            _watch(cluster.server, namespace, name, wide=output == "wide")
        elif name and namespace:
            _print_one(cluster.server, namespace, name, output)
        else:
            _print_all(cluster.server, namespace, output)


def _print_one(server: "Server", namespace: str, name: str, output: str | None) -> None:
    manifest = find_job(server, namespace, name)
    if output in ("json", "yaml"):
        click.echo(_dump(manifest, output), nl=False)
        return
    job = read_job(manifest)
    if output == "wide":
        _print_rows([manifest], wide=True, namespaces=False)
        return
    try:
        pods = own_pods(pods_of(server, namespace, name), job.uid)
    except ServerProblem as problem:
        click.echo(f"its pods are not shown: {describe_problem(problem)}", err=True)
        pods = ()
    for line in draw_job(job, pods, datetime.now(UTC)):
        click.echo(line)


def _print_all(server: "Server", namespace: str | None, output: str | None) -> None:
    answer = server.list(TRAINJOBS, namespace)
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


def _watch(server: "Server", namespace: str | None, name: str | None, *, wide: bool) -> None:
    selectors = {"fieldSelector": f"metadata.name={name}"} if name else {}
    first: list[Mapping[str, Any]] = []
    widths: tuple[int, ...] | None = None
    namespaces = namespace is None
    for change in follow(server, TRAINJOBS, namespace, selectors):
        if isinstance(change, Troubled):
            click.echo(f"trainjob: {describe_problem(change.problem)}; trying again", err=True)
        elif isinstance(change, Listed) and widths is None:
            if name and namespace and not first:
                raise missing_job(server, namespace, name)
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
