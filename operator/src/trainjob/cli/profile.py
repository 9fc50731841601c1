"""`trainjob profile`: a TensorBoard profile of some steps of a running job."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import click

from trainjob.cli.ending import NO_CLUSTER_MEANING, Exit, describe_exits, ends_quietly
from trainjob.cli.options import Duration, cluster_options
from trainjob.client.connection import ClusterOptions
from trainjob.client.jobs import find_job
from trainjob.client.problems import ClusterProblem
from trainjob.client.profile import (
    LocalProfileClient,
    PodProfileClient,
    ProfileRequest,
    choose,
    describe_end,
    find_output,
)
from trainjob.client.view import read_job
from trainjob.core.names import Replica

if TYPE_CHECKING:
    from trainjob.client.connection import Connection

_PLUGIN = "tensorboard-plugin-profile"

_EXITS = {
    Exit.GOOD: "the profile is written",
    Exit.FAILED: "it can't be had: the steps or the job are over, or the replica doesn't answer",
    Exit.NO_JOB: "there is no such job",
    Exit.NO_CLUSTER: NO_CLUSTER_MEANING,
    Exit.TIMEOUT: "the steps have not come within --timeout",
    Exit.INTERRUPTED: "interrupted by Ctrl-C; the request is withdrawn",
}


class Steps(click.ParamType[Mapping[str, int]]):
    """`100-120`, or `20` for the next twenty."""

    name = "steps"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Mapping[str, int]:
        """Return the steps in the form of a profile request."""
        found = re.fullmatch(r"(?:(\d{1,15})-)?(\d{1,15})", str(value))
        first, last = (int(part) if part else None for part in found.groups()) if found else (None, 0)
        if not last or first == 0 or (first is not None and last < first):
            self.fail(f"{value!r} are no steps: write 100-120, or 20 for the next twenty", param, ctx)
        return {"count": last} if first is None else {"first": first, "last": last}


@click.command(epilog=describe_exits(_EXITS), short_help="Record steps of a running job for TensorBoard.")
@click.argument("name", metavar="NAME")
@click.option(
    "--steps", type=Steps(), default="20", show_default=True, metavar="N-M", help="Or the next so many."
)
@click.option("--worker", type=click.IntRange(0), help="Which worker; without it, the one that leads.")
@click.option("--timeout", type=Duration(), help="Wait no longer than this, such as 90s, 15m or 1h30m.")
@click.option("--local", is_flag=True, help="A job of `trainjob run` on this machine.")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="With --local: the folder that `trainjob run` was given; without it, the run of that name is found.",
)
@cluster_options
@ends_quietly
def profile(
    name: str,
    steps: Mapping[str, int],
    worker: int | None,
    timeout: float | None,
    local: bool,
    folder: Path | None,
    where: ClusterOptions,
) -> None:
    """Have TensorFlow's profiler record steps N to M of the TrainJob NAME, which continues to train.

    Whole calls of many steps are recorded, those that the steps are in. How far it is goes to stderr, where
    the profile lies to stdout.
    """
    request = {"id": token_hex(8), **steps}
    if local:
        asyncio.run(_profile_here(name, request, worker or 0, folder, timeout))
    else:
        where.run(lambda cluster: _profile(cluster, name, request, worker, timeout))
    sys.exit(Exit.GOOD)


async def _profile_here(
    name: str, request: Mapping[str, Any], worker: int, folder: Path | None, limit: float | None
) -> None:
    output = find_output(folder, name)
    replica = Replica("worker", worker)
    client = LocalProfileClient(output, replica.name)
    answer = await ProfileRequest(client, replica.title, _say).run(request, limit)
    _conclude(answer, str(answer.get("folder")), str(output))


async def _profile(
    cluster: Connection, name: str, request: Mapping[str, Any], worker: int | None, limit: float | None
) -> None:
    job = read_job(await find_job(cluster.api, cluster.namespace, name))
    over = describe_end(job)
    if over is not None:
        raise ClusterProblem(f"{over}; only a job that trains can be profiled")
    replica = choose(job.spec, worker)
    client = PodProfileClient(cluster.api, job, replica)
    answer = await ProfileRequest(client, replica.title, _say).run(request, limit)
    folder = str(answer.get("folder"))
    _conclude(answer, f"{folder} (in the job's output)", folder.rpartition("/logs/")[0])


def _conclude(answer: Mapping[str, Any], folder: str, root: str) -> None:
    if answer.get("message"):
        _say(str(answer["message"]))
    click.echo(f"steps {answer.get('first')}-{answer.get('last')}: {folder}")
    click.echo(f"tensorboard --logdir {shlex.quote(root)}   (with the package {_PLUGIN})")


def _say(line: str) -> None:
    click.echo(line, err=True)
