"""`trainjob submit`: creates the TrainJobs of a file in a cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from trainjob.api import Document
from trainjob.cli.ending import NO_CLUSTER_MEANING, Exit, describe_exits, ends_quietly
from trainjob.cli.logs import LogShowing
from trainjob.cli.options import Duration, cluster_options, namespace_of
from trainjob.cli.screen import LogPrinter, ProgressLine
from trainjob.cli.script_options import AskedJobs, WithArguments, job_options, print_job
from trainjob.cli.wait import wait_and_conclude
from trainjob.client import submission
from trainjob.client.connection import ClusterOptions
from trainjob.client.handle import ClusterJob
from trainjob.client.job_logs import Wanted
from trainjob.client.problems import describe_problem, describe_refusal
from trainjob.client.view import read_job
from trainjob.cluster.kube.resources import TRAINJOBS
from trainjob.cluster.protocol import AlreadyExists, ClusterError, RequestFailure

if TYPE_CHECKING:
    from trainjob.client.code import Packed
    from trainjob.client.connection import Connection
    from trainjob.cluster.kube.client import ApiClient


# Messages about a job that exists already: what `kubectl apply` would change.


_MOST_FIELDS = 8


async def describe_existing(
    api: ApiClient, namespace: str, manifest: Mapping[str, Any], file: str
) -> tuple[str, ...]:
    """Return the lines about a job that exists already; asks the API server and changes nothing."""
    name = str(manifest["metadata"]["name"])
    try:
        stored = await api.get(TRAINJOBS, namespace, name)
    except ClusterError as error:
        return (f"{name} exists already in namespace {namespace} ({describe_problem(error)})",)
    job = read_job(stored)
    lines = [f"{name} exists already in namespace {namespace} ({job.state}); nothing was created"]
    again = f"  to run it again: kubectl delete tj {name} -n {namespace}, then submit it"
    if manifest["spec"].get("code"):
        # A job's code can't be changed, so applying this would be refused.
        return (*lines, f"{again}; or submit it under another name: --name NAME")
    try:
        patch = {"spec": manifest["spec"]}
        changed = await api.patch(TRAINJOBS, namespace, name, patch, dry_run=True)
        lines += changes_told(changed_fields(stored.get("spec"), changed.get("spec")), file)
    except ClusterError as refused:
        if refused.failure.code == 0:
            raise
        lines += refusal_told(refused.failure, file)
    return (*lines, again)


def changes_told(fields: tuple[str, ...], file: str) -> Iterator[str]:
    """Yield what applying the file would do."""
    if not fields:
        yield f"  it is as {file} has it: kubectl apply would change nothing"
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


@dataclass(frozen=True)
class _Submission:
    document: Document
    namespace: str
    packed: Packed | None

    @property
    def name(self) -> str:
        return str(self.document.raw["metadata"]["name"])


_EXITS = {
    Exit.GOOD: "created, and with --wait or --logs complete",
    Exit.FAILED: "a mistake in FILE, a job of that name exists, or the cluster refused it; a job failed",
    Exit.USAGE: "FILE can't be read, or the options don't fit together",
    Exit.NO_JOB: "with --wait or --logs: a job was deleted meanwhile",
    Exit.NO_CLUSTER: NO_CLUSTER_MEANING,
    Exit.TIMEOUT: "with --wait: a job is not over after --timeout",
    Exit.INTERRUPTED: "interrupted by Ctrl-C; jobs that were created continue",
    Exit.NOBODY_READS: "nobody reads the output any more; jobs that were created continue",
}


@click.command(
    cls=WithArguments,
    epilog=describe_exits(_EXITS),
    short_help="Create a script's job, or those of a file, in a cluster.",
)
@job_options
@click.option("--wait", is_flag=True, help="Wait until all jobs are over; the exit code says how they ended.")
@click.option("--logs", is_flag=True, help="Print the job's logs until it is over; for a FILE with one job.")
@click.option("--timeout", type=Duration(), help="With --wait, wait no longer for each job than this.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Create nothing: for a script print its TrainJob, for a file have the API server check everything.",
)
@cluster_options
@ends_quietly
def submit(
    asked: AskedJobs, wait: bool, logs: bool, timeout: float | None, dry_run: bool, where: ClusterOptions
) -> None:
    """Create TrainJobs in a cluster: those of FILE, `-` for the standard input, or that of a Python script.

    A script travels with the Python files beside it and with --code, in a ConfigMap of the job. What follows
    -- are the program's arguments; they replace those in a file.

    All TrainJobs of a file are checked first as `trainjob validate` does: after a mistake nothing is created.
    Each goes into the namespace of -n, else into the one that FILE names, else into that of the kubeconfig's
    context. A job that exists is left as it is; what `kubectl apply` would make of FILE is said.
    """
    if dry_run and (wait or logs):
        raise click.UsageError("--dry-run creates nothing that could be waited for")
    if timeout is not None and (logs or not wait):
        raise click.UsageError("--timeout limits --wait, and goes with nothing else")
    asked.check_for_cluster()
    packed, notes = asked.pack()
    documents = asked.for_cluster(packed)
    if logs and len(documents) > 1:
        raise click.UsageError(f"--logs follows one job, and {asked.file} holds {len(documents)}")
    for note in notes:
        click.echo(note, err=True)
    if dry_run and asked.is_script:
        click.echo(print_job(documents[0].raw), nl=False)
        return

    async def create(cluster: Connection) -> Exit:
        jobs = [
            _Submission(d, namespace_of(d, where.namespace, cluster.namespace), packed) for d in documents
        ]
        code = max([await _create(cluster.api, job, asked, dry_run=dry_run) for job in jobs])
        if code is Exit.GOOD and logs:
            return await _follow(cluster.api, jobs[0])
        if code is Exit.GOOD and wait:
            return max([await _wait(cluster.api, job, timeout) for job in jobs])
        return code

    sys.exit(where.run(create))


async def _create(api: ApiClient, job: _Submission, asked: AskedJobs, *, dry_run: bool) -> Exit:
    raw = job.document.raw
    try:
        if dry_run:
            metadata = {**raw["metadata"], "namespace": job.namespace}
            await api.create(TRAINJOBS, {**raw, "metadata": metadata}, dry_run=True)
        else:
            await submission.submit(api, job.namespace, raw, job.packed)
    except ClusterError as refused:
        is_about_job = refused.failure.resource == TRAINJOBS.plural
        if isinstance(refused, AlreadyExists) and is_about_job:
            lines = await describe_existing(api, job.namespace, raw, asked.file)
        elif refused.failure.code in (400, 413, 422) and is_about_job:
            lines = describe_refusal(refused.failure, job.document)
        else:
            raise
        for line in lines:
            click.echo(line, err=True)
        return Exit.FAILED
    done = "could be created" if dry_run else "was created"
    click.echo(f"{job.name} {done} in namespace {job.namespace}")
    return Exit.GOOD


async def _wait(api: ApiClient, job: _Submission, limit: float | None) -> Exit:
    progress = ProgressLine()
    handle = ClusterJob(api, job.namespace, job.name, progress.problem)
    return await wait_and_conclude(handle, limit, progress)


async def _follow(api: ApiClient, job: _Submission) -> Exit:
    printer = LogPrinter()
    return await LogShowing(api, job.namespace, job.name, wanted=Wanted(), printer=printer).follow()
