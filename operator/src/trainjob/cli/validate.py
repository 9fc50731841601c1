"""`trainjob validate`: every mistake of every file, with its line and field."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from trainjob.api import Document, TrainJob
from trainjob.cli.documents import RefusedFile, check_valid, read_trainjobs
from trainjob.cli.ending import command, print_lines
from trainjob.cli.options import cluster_options, file_arguments, namespace_of
from trainjob.client.connection import ClusterOptions
from trainjob.core.manifests import count_gpus, role_template
from trainjob.core.names import replica_counts

if TYPE_CHECKING:
    from trainjob.client.connection import Connection


@command(
    "Check TrainJobs, offline or with a cluster's API server.",
    good="valid",
    failed="there are mistakes; with --cluster: or the API server refuses something",
    usage="a file can't be read",
    no_cluster="with --cluster: the cluster can't be used, or some checks aren't possible: no permission, "
    "no TrainJob API",
)
@file_arguments
@click.option(
    "--cluster",
    is_flag=True,
    help="Also have the API server check the job and each of its pods. Nothing is created.",
)
@cluster_options
def validate(files: tuple[str, ...], cluster: bool, where: ClusterOptions) -> None:
    """Check the TrainJobs of FILEs; `-` reads the standard input. Without --cluster no cluster is needed.

    Each mistake is one line on stderr.
    """
    if where != ClusterOptions() and not cluster:
        raise click.UsageError("-n, --context and --kubeconfig need --cluster")
    valid: list[Document] = []
    code = 0
    for file in files:
        try:
            valid += check_valid(read_trainjobs(file))
        except RefusedFile as problem:
            problem.show()
            code = max(code, problem.exit_code)
    if cluster and valid:
        code = max(code, _ask(valid, where, named=len(valid) > 1 or bool(code)))
    else:
        for document in valid:
            job = document.parse()
            name = f"{job.metadata.name}: " if len(valid) > 1 or code else ""
            click.echo(f"{name}valid: {describe_size(job)}")
    if code:
        sys.exit(code)


def describe_size(job: TrainJob) -> str:
    """Return the job's size, such as `3 pods, 0 GPUs`."""
    counts = replica_counts(job.spec)
    gpus = sum(count * count_gpus(role_template(job.spec, role)) for role, count in counts.items())
    pods = sum(counts.values())
    return f"{pods} pod{'' if pods == 1 else 's'}, {gpus} GPU{'' if gpus == 1 else 's'}"


def _ask(documents: list[Document], where: ClusterOptions, *, named: bool) -> int:
    # Rendering and the Kubernetes client are slow to import, and only --cluster needs them.
    from trainjob.cli.dry_run import check_on_cluster  # noqa: PLC0415

    async def ask(cluster: Connection) -> int:
        code = 0
        for document in documents:
            namespace = namespace_of(document, where.namespace, cluster.namespace)
            verdict = await check_on_cluster(cluster.api, document, namespace)
            print_lines(verdict.lines, err=True)
            code = max(code, verdict.code)
            if not verdict.code:
                job = document.parse()
                name = f"{job.metadata.name}: " if named else ""
                click.echo(f"{name}valid: {describe_size(job)}; the cluster accepts them in {namespace}")
        return code

    return where.run(ask)
