"""`trainjob logs`: the logs of the replicas of a job in a cluster."""

import sys

import click

from trainjob.cli.cluster.errors import Exit, describe_exits
from trainjob.cli.cluster.job_logs import LogShowing, Wanted
from trainjob.cli.cluster.options import ClusterOptions, cluster_options, ends_quietly
from trainjob.cli.cluster.waiting import LogPrinter
from trainjob.core.names import EVALUATOR, TRAINING_ROLES

_EXITS = {
    Exit.GOOD: "the logs were printed; with -f: and the job is complete",
    Exit.FAILED: "with -f: the job failed",
    Exit.NO_JOB: "there is no such job; with -f: or it was deleted meanwhile",
    Exit.NO_CLUSTER: "the cluster can't be asked: no kubeconfig, no answer, no permission, no TrainJob API",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
    Exit.NOBODY_READS: "nobody reads the output any more",
}


@click.command(epilog=describe_exits(_EXITS), short_help="Print the logs of a job's replicas.")
@click.argument("name", metavar="NAME")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job is over, through restarts.")
@click.option("--role", type=click.Choice([*TRAINING_ROLES, EVALUATOR]), help="Only replicas of this role.")
@click.option("--index", type=click.IntRange(0), help="Only replicas with this index.")
@click.option("-p", "--previous", is_flag=True, help="The pods before, as far as they are left.")
@click.option("--tail", type=click.IntRange(0), help="Only this many last lines of each replica.")
@click.option("--timestamps", is_flag=True, help="Print when each line was written.")
@cluster_options
@ends_quietly
def logs(
    name: str,
    follow: bool,
    role: str | None,
    index: int | None,
    previous: bool,
    tail: int | None,
    timestamps: bool,
    where: ClusterOptions,
) -> None:
    """Print the logs of all replicas of the TrainJob NAME, in the order in which lines were written.

    With -f it waits for pods that aren't there yet, goes on with those that take their places after a
    restart, and tells at the end what came of the job. Notes about the job go to stderr, logs to stdout.
    """
    if follow and previous:
        raise click.UsageError("--previous shows what is over; it can't be followed")
    with where.connected() as cluster:
        showing = LogShowing(
            cluster.server,
            where.namespace or cluster.namespace,
            name,
            wanted=Wanted(role, index),
            printer=LogPrinter(stamps=timestamps),
            tail=tail,
        )
        how = showing.follow if follow else showing.show_previous if previous else showing.show
        code = how()
    sys.exit(code)
