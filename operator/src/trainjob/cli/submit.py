"""`trainjob submit`: TrainJobs of a file, created in a cluster."""

import sys
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from trainjob.cli.cluster.answers import Refused
from trainjob.cli.cluster.conclusion import wait_and_conclude
from trainjob.cli.cluster.duration import Duration
from trainjob.cli.cluster.existing import describe_existing
from trainjob.cli.cluster.exits import Exit, describe_exits
from trainjob.cli.cluster.log_showing import LogShowing
from trainjob.cli.cluster.namespaces import namespace_of
from trainjob.cli.cluster.printing import LogPrinter
from trainjob.cli.cluster.refusals import describe_refusal
from trainjob.cli.cluster.resources import TRAINJOBS
from trainjob.cli.cluster.selection import Wanted
from trainjob.cli.cluster.where import Where, cluster_options, ends_quietly
from trainjob.cli.files import read_valid_trainjobs

if TYPE_CHECKING:
    from trainjob.api import Document
    from trainjob.cli.cluster.server import Server


@dataclass(frozen=True)
class _Submission:
    document: "Document"
    namespace: str

    @property
    def name(self) -> str:
        return str(self.document.raw["metadata"]["name"])

    @property
    def manifest(self) -> dict[str, Any]:
        manifest = deepcopy(self.document.raw)
        manifest["metadata"]["namespace"] = self.namespace
        return manifest


_EXITS = {
    Exit.GOOD: "created, and with --wait or --logs complete",
    Exit.FAILED: "a mistake in FILE, a job of that name exists, or the cluster refused it; a job failed",
    Exit.USAGE: "FILE can't be read, or the options don't fit together",
    Exit.NO_JOB: "with --wait or --logs: a job was deleted meanwhile",
    Exit.NO_CLUSTER: "the cluster can't be asked: no kubeconfig, no answer, no permission, no TrainJob API",
    Exit.TIMEOUT: "with --wait: a job is not over after --timeout",
    Exit.INTERRUPTED: "interrupted by Ctrl-C; jobs that were created go on",
    Exit.NOBODY_READS: "nobody reads the output any more; jobs that were created go on",
}


@click.command(epilog=describe_exits(_EXITS), short_help="Create TrainJobs in a cluster.")
@click.argument("file", metavar="FILE")
@click.option("--wait", is_flag=True, help="Wait until all jobs are over; the exit code says how they ended.")
@click.option("--logs", is_flag=True, help="Print the job's logs until it is over; for a FILE with one job.")
@click.option("--timeout", type=Duration(), help="With --wait, wait no longer for each job than this.")
@click.option("--dry-run", is_flag=True, help="Have the API server check everything, and create nothing.")
@cluster_options
@ends_quietly
def submit(file: str, wait: bool, logs: bool, timeout: float | None, dry_run: bool, where: Where) -> None:
    """Create the TrainJobs of FILE in a cluster; `-` reads the standard input.

    All of them are checked first as `trainjob validate` does: after a mistake nothing is created. Each goes
    into the namespace of -n, else into the one that FILE names, else into that of the kubeconfig's context.
    A job that exists is left as it is; what `kubectl apply` would make of FILE is said.
    """
    if dry_run and (wait or logs):
        raise click.UsageError("--dry-run creates nothing that could be waited for")
    if timeout is not None and (logs or not wait):
        raise click.UsageError("--timeout limits --wait, and goes with nothing else")
    documents = read_valid_trainjobs(file)
    if logs and len(documents) > 1:
        raise click.UsageError(f"--logs follows one job, and {file} holds {len(documents)}")
    with where.connected() as cluster:
        jobs = [_Submission(d, namespace_of(d, where.namespace, cluster.namespace)) for d in documents]
        code = max(_create(cluster.server, job, file, dry_run=dry_run) for job in jobs)
        if code is Exit.GOOD and logs:
            code = _follow(cluster.server, jobs[0])
        elif code is Exit.GOOD and wait:
            code = max(wait_and_conclude(cluster.server, j.namespace, j.name, timeout) for j in jobs)
    sys.exit(code)


def _create(server: "Server", job: _Submission, file: str, *, dry_run: bool) -> Exit:
    try:
        server.create(TRAINJOBS, job.namespace, job.manifest, dry_run=dry_run)
    except Refused as refused:
        if refused.answer.reason == "AlreadyExists":
            lines = describe_existing(server, job.namespace, job.document.raw, file)
        elif refused.answer.code in (400, 413, 422):
            lines = describe_refusal(refused.answer, job.document)
        else:
            raise
        for line in lines:
            click.echo(line, err=True)
        return Exit.FAILED
    done = "could be created" if dry_run else "was created"
    click.echo(f"{job.name} {done} in namespace {job.namespace}")
    return Exit.GOOD


def _follow(server: "Server", job: _Submission) -> Exit:
    printer = LogPrinter()
    return LogShowing(server, job.namespace, job.name, wanted=Wanted(), printer=printer).follow()
