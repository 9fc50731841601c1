"""`trainjob tensorboard`: shows the curves of a job, or of all runs on this machine, in TensorBoard."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import click

from trainjob.cli.ending import Exit, command, like_ctrl_c
from trainjob.cli.options import cluster_options
from trainjob.client.connection import ClusterOptions
from trainjob.client.handle import JobHandle, find_handle
from trainjob.client.output import open_output
from trainjob.client.problems import ClusterProblem, NoJob
from trainjob.client.run_record import Run, all_runs
from trainjob.core.wording import printable

_REFRESH_SECONDS = 30.0
"""Between two looks at a job's new points; TensorBoard itself looks at its files every five seconds."""

_CLOSE_SECONDS = 5.0


async def serve(folder: Path, port: int | None) -> int:
    """Run TensorBoard on this folder until it ends, and return its exit code; it is ended with this task."""
    words = ["--logdir", str(folder), "--host", "127.0.0.1", *(["--port", str(port)] if port else [])]
    board = await asyncio.create_subprocess_exec(*find_tensorboard(), *words)
    try:
        return await board.wait()
    finally:
        with suppress(ProcessLookupError):
            board.terminate()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await board.wait()
        except TimeoutError:
            board.kill()
            await board.wait()


def find_tensorboard() -> list[str]:
    """Return the words that start TensorBoard; raises `ClusterProblem` if it isn't installed."""
    if find_spec("tensorboard") is not None:
        return [sys.executable, "-m", "tensorboard.main"]
    found = shutil.which("tensorboard")
    if found is None:
        raise ClusterProblem("TensorBoard isn't installed here: pip install tensorboard")
    return [found]


async def show_job(handle: JobHandle, port: int | None) -> int:
    """Show one job; a job in a cluster is copied into a folder that lasts as long as TensorBoard."""
    job = await handle.view()
    if job.folder:
        return await serve(Path(job.folder), port)
    find_tensorboard()  # before a pod is started for it
    with tempfile.TemporaryDirectory(prefix="trainjob-") as private:
        folder = Path(private) / job.name
        folder.mkdir()
        ready = asyncio.get_running_loop().create_future()
        following = asyncio.ensure_future(_follow(handle, folder, ready))
        try:
            await asyncio.wait([following, ready], return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                following.result()  # raises
            return await serve(folder, port)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def _follow(handle: JobHandle, folder: Path, ready: asyncio.Future[None]) -> None:
    """Copy what is new until the job is over; the pod that reads it is replaced after its hour."""
    while True:
        try:
            job = await handle.view()
            async with open_output(handle, job, _say) as output:
                while True:
                    copied = await output.update(folder)
                    if not ready.done():
                        if not copied.files:
                            _say(f"{job.name} has no curves yet; they appear once it has written some")
                        ready.set_result(None)
                    if job.is_over:
                        return
                    await asyncio.sleep(_REFRESH_SECONDS)
                    job = await handle.view()
        except ClusterProblem as problem:
            if not ready.done():
                raise
            if isinstance(problem, NoJob):
                _say(f"{problem}; TensorBoard shows what was there before")
                return
            _say(f"{problem}; trying again in {_REFRESH_SECONDS:g} s")
            await asyncio.sleep(_REFRESH_SECONDS)


async def show_runs(port: int | None) -> int:
    """Show all runs on this machine, also those that begin meanwhile."""
    if not all_runs():
        raise ClusterProblem("there are no runs on this machine: start one with `trainjob run FILE`")
    with tempfile.TemporaryDirectory(prefix="trainjob-") as private:
        folder = Path(private)
        link_runs(folder, all_runs())
        serving = asyncio.ensure_future(serve(folder, port))
        try:
            while not serving.done():
                await asyncio.wait([serving], timeout=_REFRESH_SECONDS)
                link_runs(folder, all_runs())
            return serving.result()
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


def link_runs(folder: Path, runs: Iterable[Run]) -> None:
    """Make a link to each run; of several of one name, the later ones have a number."""
    linked = {link.readlink() for link in folder.iterdir()}
    for run in reversed(tuple(runs)):  # the earliest first
        if run.folder in linked:
            continue
        number, link = 1, folder / run.name
        while link.is_symlink():
            number += 1
            link = folder / f"{run.name} ({number})"
        link.symlink_to(run.folder)


def _say(text: str) -> None:
    click.echo(f"trainjob: {printable(text)}", err=True)


@command(
    "Show the curves of a job, or of all runs here.",
    Exit.NO_JOB,
    Exit.NO_CLUSTER,
    good="TensorBoard was ended",
    failed="TensorBoard isn't installed or can't start, or the output can't be read",
    interrupted="ended by Ctrl-C",
)
@click.argument("name", metavar="[NAME]", required=False)
@click.option(
    "--port", type=click.IntRange(1, 65535), help="The port; default: the first free one from 6006."
)
@cluster_options
def tensorboard(name: str | None, port: int | None, where: ClusterOptions) -> None:
    """Show the curves of the TrainJob NAME in TensorBoard, on this machine only, until Ctrl-C.

    NAME is a run on this machine or, if there is none of that name, a job in the cluster. Without a NAME all
    runs on this machine are shown. The event files of a job in a cluster are copied, and every 30 seconds
    what is new in them. A pod with the job's image reads them, as for `trainjob cp`; it is deleted when the
    job is over, and at Ctrl-C.
    """
    if name is None and where != ClusterOptions():
        raise click.UsageError("name a job of the cluster; without a name the runs on this machine are shown")

    async def work() -> int:
        with like_ctrl_c():
            if name is None:
                return await show_runs(port)
            async with find_handle(name, where, on_problem=_say) as handle:
                return await show_job(handle, port)

    sys.exit(Exit.FAILED if asyncio.run(work()) else Exit.GOOD)
