"""`trainjob submit`: creates the TrainJobs of a file in a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from trainjob.api import Document
from trainjob.cli.ending import Exit, command, print_lines
from trainjob.cli.following import follow_logs, wait_and_conclude
from trainjob.cli.options import Duration, cluster_options, namespace_of
from trainjob.cli.screen import LogPrinter, ProgressLine
from trainjob.cli.script_options import JobSource, WithArguments, job_options, print_job
from trainjob.client.connection import ClusterOptions
from trainjob.client.handle import ClusterJob
from trainjob.client.job_logs import Wanted
from trainjob.client.problems import describe_refusal
from trainjob.client.submission import AnotherJob, Packed, start_over
from trainjob.client.submission import submit as create_job
from trainjob.client.view import JobView, Outcome, read_job
from trainjob.cluster.kube.resources import TRAINJOBS
from trainjob.cluster.protocol import ClusterError, RequestFailure

if TYPE_CHECKING:
    from trainjob.client.connection import Connection
    from trainjob.cluster.kube.client import ApiClient


_MOST_FIELDS = 8


def changes_told(fields: tuple[str, ...], file: str) -> Iterator[str]:
    """Yield what applying the file would do."""
    if not fields:
        yield f"  it matches {file}: kubectl apply would change nothing"
        return
    more = f" and {len(fields) - _MOST_FIELDS} more" if len(fields) > _MOST_FIELDS else ""
    yield f"  kubectl apply -f {file} would change {', '.join(fields[:_MOST_FIELDS])}{more}"


def refusal_told(failure: RequestFailure, file: str) -> Iterator[str]:
    """Yield why the file can't be applied."""
    yield f"  kubectl apply -f {file} would be refused:"
    causes = [f"{cause.get('field')}: {cause.get('message')}" for cause in failure.causes]
    yield from (f"    {line}" for line in causes or [failure.message])


def changed_fields(before: Any, after: Any, path: str = "spec") -> tuple[str, ...]:
    """Return the innermost fields that differ; lists are compared as a whole."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        keys = dict.fromkeys([*before, *after])
        return tuple(
            p for key in keys for p in changed_fields(before.get(key), after.get(key), f"{path}.{key}")
        )
    return () if before == after else (path,)


@command(
    "Create a script's job, or those of a file, in a cluster.",
    Exit.NO_CLUSTER,
    cls=WithArguments,
    good="created, or existing with the same request; with --wait or --logs: and complete",
    failed="a mistake in FILE, another job of that name, or the cluster refused it; a job failed",
    usage="FILE can't be read, or the options don't fit together",
    no_job="with --wait or --logs: a job was deleted meanwhile",
    timeout="with --wait: a job is not over after --timeout",
    interrupted="interrupted by Ctrl-C; jobs that were created continue",
    nobody_reads="the program that read the output has exited; jobs that were created continue",
)
@job_options
@click.option("--wait", is_flag=True, help="Wait until all jobs are over; the exit code says how they ended.")
@click.option("--logs", is_flag=True, help="Print the job's logs until it is over; for a FILE with one job.")
@click.option(
    "--new",
    is_flag=True,
    envvar="TRAINJOB_NEW",
    show_envvar=True,
    help="If the request differs from that of the job of this name, create another job, such as digits-2.",
)
@click.option(
    "--fresh",
    is_flag=True,
    help="Start over in a new folder of the output (resume: Never); a finished job of that name is replaced,"
    " and its output stays.",
)
@click.option("--timeout", type=Duration(), help="With --wait: the time limit for each job, such as 15m.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Create nothing: for a script print its TrainJob, for a file have the API server check everything.",
)
@cluster_options
def submit(
    source: JobSource,
    wait: bool,
    logs: bool,
    new: bool,
    fresh: bool,
    timeout: float | None,
    dry_run: bool,
    where: ClusterOptions,
) -> None:
    """Create TrainJobs in a cluster: those of FILE, `-` for the standard input, or that of a Python script.

    A script is sent in a ConfigMap of the job, with the Python files beside it and those of --code. The
    arguments after -- are the program's; they replace those in a file.

    All TrainJobs of a file are checked first, as by `trainjob validate`; if one has a mistake, nothing is
    created. The namespace is that of -n, else the one in FILE, else that of the kubeconfig's context.

    A job's name stands for one request: command, arguments, environment, code, and every setting that changes
    what is computed. --wait and --logs follow a job that the same request has created. Another request is
    refused.
    """
    if dry_run and (wait or logs):
        raise click.UsageError("--dry-run creates no job: leave out --wait and --logs")
    if timeout is not None and (logs or not wait):
        raise click.UsageError("--timeout limits --wait: add --wait, and leave out --logs")
    if fresh and source.smoke:
        raise click.UsageError("--smoke always starts over, beside the job: leave out --fresh")
    documents, packed, notes = source.for_cluster()
    if fresh:
        documents = tuple(replace(each, raw=start_over(each.raw)) for each in documents)
    if logs and len(documents) > 1:
        raise click.UsageError(f"--logs follows one job, and {source.file} holds {len(documents)}")
    for note in notes:
        click.echo(note, err=True)
    if dry_run and source.is_script:
        click.echo(print_job(documents[0].raw), nl=False)
        return

    async def create(cluster: Connection) -> Exit:
        api, jobs, code = cluster.api, list[tuple[str, str]](), Exit.GOOD
        namespaces = [namespace_of(document, where.namespace, cluster.namespace) for document in documents]
        for document, namespace in zip(documents, namespaces, strict=True):
            stored = await _create(
                api, document, namespace, packed, source, new=new, fresh=fresh, dry_run=dry_run
            )
            if stored is None or stored.outcome is Outcome.FAILED:
                code = Exit.FAILED
            else:
                jobs.append((namespace, stored.name))
        if code is Exit.GOOD and logs:
            return await follow_logs(ClusterJob(api, *jobs[0]), LogPrinter(), Wanted())
        if code is Exit.GOOD and wait:
            for job in jobs:
                progress = ProgressLine()
                handle = ClusterJob(api, *job, progress.problem)
                code = max(code, await wait_and_conclude(handle, timeout, progress))
        return code

    sys.exit(where.run(create))


async def _create(
    api: ApiClient,
    document: Document,
    namespace: str,
    packed: Packed | None,
    source: JobSource,
    *,
    new: bool,
    fresh: bool,
    dry_run: bool,
) -> JobView | None:
    """Create the job, or find the one that the same request has created; None if neither is possible."""
    try:
        stored, is_new = await create_job(
            api, namespace, document.raw, packed, new=new, fresh=fresh, dry_run=dry_run
        )
    except AnotherJob as other:
        name = "--name NAME" if source.is_script else "--set metadata.name=NAME"
        how = f"trainjob delete {other.job.name} -n {namespace}, then submit it with --fresh"
        how = "--fresh" if other.job.is_over and not fresh else how
        print_lines([f"{other}; start over: {how}; train it separately: {name}, or --new"], err=True)
        return None
    except ClusterError as refused:
        is_about_job = refused.failure.resource == TRAINJOBS.plural
        if refused.failure.code not in (400, 413, 422) or not is_about_job:
            raise
        print_lines(describe_refusal(refused.failure, document), err=True)
        return None
    job = read_job(stored)
    if is_new:
        click.echo(f"{job.name} {'could be' if dry_run else 'was'} created in namespace {job.namespace}")
        return job
    lines = [f"{job.name} exists already in namespace {namespace} ({job.state}), with the same request"]
    spec, file = document.raw["spec"], source.file
    if not spec.get("code"):  # a job's code has a name of its own each time
        try:
            changed = await api.patch(TRAINJOBS, namespace, job.name, {"spec": spec}, dry_run=True)
            lines += changes_told(changed_fields(stored.get("spec"), changed.get("spec")), file)
        except ClusterError as refused:
            if refused.failure.code == 0:
                raise
            lines += refusal_told(refused.failure, file)
    if job.outcome is Outcome.FAILED:
        lines.append(f"  to run it again: kubectl delete tj {job.name} -n {namespace}, then submit it")
    print_lines(lines, err=True)
    return job
