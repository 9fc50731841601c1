"""`trainjob logs`: the logs of the replicas of a job in a cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from trainjob.cli.cluster.job_logs import LogShowing, Wanted
from trainjob.cli.cluster.options import ClusterOptions, cluster_options, ends_quietly
from trainjob.cli.cluster.problems import Exit, describe_exits
from trainjob.cli.screen import LogPrinter
from trainjob.core.names import EVALUATOR, TRAINING_ROLES

if TYPE_CHECKING:
    from trainjob.cli.cluster.connection import Connection

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

    async def show(cluster: Connection) -> Exit:
        printer, wanted = LogPrinter(stamps=timestamps), Wanted(role, index)
        showing = LogShowing(cluster.api, cluster.namespace, name, wanted=wanted, printer=printer, tail=tail)
        if follow:
            return await showing.follow()
        return await (showing.show_previous() if previous else showing.show())

    sys.exit(where.run(show))
