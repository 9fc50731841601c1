"""`trainjob wait`: waits until a job in a cluster is over."""

import sys

import click

from trainjob.cli.cluster.errors import Exit, describe_exits
from trainjob.cli.cluster.options import ClusterOptions, Duration, cluster_options, ends_quietly
from trainjob.cli.cluster.waiting import wait_and_conclude

_EXITS = {
    Exit.GOOD: "the job is complete",
    Exit.FAILED: "the job failed",
    Exit.NO_JOB: "there is no such job, or it was deleted while it was waited for",
    Exit.NO_CLUSTER: "the cluster can't be asked: no kubeconfig, no answer, no permission, no TrainJob API",
    Exit.TIMEOUT: "the job is not over after --timeout",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
}


@click.command(epilog=describe_exits(_EXITS), short_help="Wait until a job is over.")
@click.argument("name", metavar="NAME")
@click.option("--timeout", type=Duration(), help="Wait no longer than this, such as 90s, 15m or 1h30m.")
@cluster_options
@ends_quietly
def wait(name: str, timeout: float | None, where: ClusterOptions) -> None:
    """Wait until the TrainJob NAME is over, whatever happens to the connection meanwhile.

    How far it is goes to stderr; what came of it to stdout if it is complete, else to stderr.
    """
    sys.exit(where.run(lambda cluster: wait_and_conclude(cluster.api, cluster.namespace, name, timeout)))
