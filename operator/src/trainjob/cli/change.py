"""`trainjob delete`, `suspend`, `resume` and `scale`: change a job in a cluster or a run on this machine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import click

from trainjob.cli.ending import ABOUT_A_JOB, command
from trainjob.cli.options import cluster_options
from trainjob.client.connection import ClusterOptions
from trainjob.client.handle import find_handle
from trainjob.client.presenter import describe_state, format_size
from trainjob.client.runs import LocalJob, folder_size, shown_path
from trainjob.core.wording import count_roles

_REFUSED = "the change was refused, or the run has ended"


@command(
    "Delete jobs, or runs with their folders.",
    *ABOUT_A_JOB,
    good="deleted",
    failed=_REFUSED,
    usage="--yes is missing, and there is no terminal to ask on",
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Don't ask before a run's folder is removed.")
@cluster_options
def delete(names: tuple[str, ...], yes: bool, where: ClusterOptions) -> None:
    """Delete each TrainJob NAME: a run on this machine or, if there is none, a job in the cluster.

    A run that is training is stopped first. The command asks, and then removes the run's folder with
    checkpoints, model and logs. The output of a job in a cluster stays, unless the job owns its claim.
    """

    async def work() -> None:
        for name in names:
            async with find_handle(name, where, certain=True) as job:
                if isinstance(job, LocalJob) and not yes:
                    await _confirm(job)
                await job.delete()
                click.echo(f"{job.name} deleted from {job.place}")

    asyncio.run(work())


async def _confirm(job: LocalJob) -> None:
    """Ask before a run is deleted.

    Raises:
        click.UsageError: there is no terminal.
        click.Abort: the answer is no.
    """
    view = await job.view()
    folder = f"{shown_path(job.folder)} ({format_size(folder_size(job.folder))})"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(
            f"this would remove {folder}, and there is no terminal to ask on: add --yes to remove it"
        )
    stop = "" if view.is_over else f"stop it ({describe_state(view)}), and "
    click.confirm(f"{job.name}: {stop}remove {folder} and everything in it?", abort=True, err=True)


def _change(name: str, where: ClusterOptions, spec: Mapping[str, Any], done: str) -> None:
    async def work() -> None:
        async with find_handle(name, where) as job:
            await job.patch(spec)
            click.echo(f"{job.name} {done}")

    asyncio.run(work())


@command("Stop a job's pods until it is resumed.", *ABOUT_A_JOB, good="changed", failed=_REFUSED)
@click.argument("name", metavar="NAME")
@cluster_options
def suspend(name: str, where: ClusterOptions) -> None:
    """Suspend the TrainJob NAME: its replicas save and stop; `trainjob resume` lets them continue.

    NAME is a run on this machine, whose `trainjob run` keeps waiting, or, if there is none, a job in the
    cluster.
    """
    _change(name, where, {"suspend": True}, "suspended")


@command("Let a suspended job continue.", *ABOUT_A_JOB, good="changed", failed=_REFUSED)
@click.argument("name", metavar="NAME")
@cluster_options
def resume(name: str, where: ClusterOptions) -> None:
    """Let the suspended TrainJob NAME continue from its last checkpoint."""
    _change(name, where, {"suspend": False}, "resumed")


@command("Change the number of a job's workers.", *ABOUT_A_JOB, good="changed", failed=_REFUSED)
@click.argument("name", metavar="NAME")
@click.option("--replicas", type=click.IntRange(1), required=True, metavar="N", help="The number of workers.")
@cluster_options
def scale(name: str, replicas: int, where: ClusterOptions) -> None:
    """Train the TrainJob NAME with N workers: training restarts from its last checkpoint."""
    _change(name, where, {"worker": {"replicas": replicas}}, f"scaled to {count_roles({'worker': replicas})}")
