"""`trainjob cp`: copies files of a job's output to this machine, from a cluster or from a run here."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import click

from trainjob.cli.ending import (
    ABOUT_A_JOB,
    Exit,
    command,
    like_ctrl_c,
    print_lines,
)
from trainjob.cli.options import Duration, cluster_options
from trainjob.cli.screen import ProgressLine
from trainjob.client.connection import ClusterOptions
from trainjob.client.handle import find_handle
from trainjob.client.output import Copied, open_output
from trainjob.client.presenter import format_size
from trainjob.client.problems import ClusterProblem, TimeIsOver

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_DRAWINGS = 0.2


def describe_progress(done: Copied, total: Copied) -> str:
    """Return `3 of 12 files, 1.5 of 20 MB`."""
    return f"{done.files} of {count_files(total)}, {format_size(done.size)} of {format_size(total.size)}"


def count_files(copied: Copied) -> str:
    """Return `1 file`, or `12 files`."""
    return f"{copied.files} file{'' if copied.files == 1 else 's'}"


@command(
    "Copy a job's model, checkpoints or logs here.",
    *ABOUT_A_JOB,
    good="copied",
    failed="there is no such path, TARGET exists or can't be written, or the output can't be read",
    usage="the argument isn't NAME:PATH, or an option is wrong",
    timeout="not copied after --timeout",
)
@click.argument("source", metavar="NAME:PATH")
@click.argument("target", metavar="TARGET", type=click.Path(path_type=Path))
@click.option("--timeout", type=Duration(), help="The time limit, such as 90s, 15m or 1h30m.")
@cluster_options
def cp(source: str, target: Path, timeout: float | None, where: ClusterOptions) -> None:
    """Copy a file or folder from the output of the TrainJob NAME to TARGET, or into TARGET if it is a folder.

    PATH is relative to the job's output, such as model, checkpoints or logs; without PATH the whole output is
    copied. TARGET appears once the copy is complete. NAME is a run on this machine or, if there is none of
    that name, a job in the cluster.

    In a cluster, a pod with the job's image mounts the output read-only while the command runs, for at most
    an hour. The files come through the API server.
    """
    name, colon, path = source.partition(":")
    if not name or not colon:
        raise click.UsageError(f"{source!r} names no files of a job: write NAME:PATH, such as digits:model")
    if target.is_dir():
        target /= Path(path.strip("/") or name).name
    line, shown_at = ProgressLine(), time.monotonic()
    pause = _SECONDS_BETWEEN_DRAWINGS if line.redraws else _SECONDS_BETWEEN_LINES

    def show(done: Copied, total: Copied) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= pause:
            shown_at = time.monotonic()
            line.problem(describe_progress(done, total))

    async def work() -> Copied:
        with like_ctrl_c():
            async with (
                asyncio.timeout(timeout),
                find_handle(name, where, on_problem=line.problem) as handle,
                open_output(handle, await handle.view(), line.problem) as output,
            ):
                return await output.copy(path, target, show)

    try:
        copied = asyncio.run(work())
    except FileExistsError as error:
        raise ClusterProblem(str(error)) from error
    except TimeoutError as error:
        raise TimeIsOver(f"{source} is not copied after {timeout or 0:g} s; nothing of it is kept") from error
    except OSError as error:
        raise ClusterProblem(f"{target} can't be written: {error.strerror or error}") from error
    finally:
        line.clear()
    print_lines((f"left out: {each}" for each in copied.left_out), err=True)
    print_lines([f"{target}: {count_files(copied)}, {format_size(copied.size)}"], err=False)
    sys.exit(Exit.GOOD)
