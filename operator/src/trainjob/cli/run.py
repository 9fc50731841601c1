"""`trainjob run`: a TrainJob as processes on this machine."""

import asyncio
import io
import logging
import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import get_args

import click

from trainjob.api import InvalidTrainJob
from trainjob.cli.documents import STDIN, RefusedFile
from trainjob.cli.ending import Exit, print_lines
from trainjob.cli.screen import Detail, LiveScreen, PlainScreen
from trainjob.cli.script_options import RUNS, JobSource, WithArguments, job_options, print_job
from trainjob.client.local_run import Interruption, RunRequest, Screen, run_here
from trainjob.client.run_record import RunEnd
from trainjob.cluster.local import CannotRunHere, LocalOptions, Network


@click.command(cls=WithArguments, short_help="Train a script or a job on this machine, without a cluster.")
@job_options
@click.option(
    "--fresh",
    is_flag=True,
    help="Start over; the previous output is kept beside the new one, as digits.1 for example.",
)
@click.option(
    "--resume",
    metavar="FOLDER",
    help="Continue an earlier run, such as digits.1. Its folder becomes the job's; the current one is kept.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    show_default="runs, beside FILE",
    help="The folder in which claims and other volumes become folders.",
)
@click.option(
    "--base-port",
    type=click.IntRange(1024, 65000),
    help="TensorFlow's port of the first replica; each further replica's is one higher. Agents use any free "
    "ports.",
)
@click.option(
    "--network",
    type=click.Choice(get_args(Network)),
    envvar="TRAINJOB_NETWORK",
    show_envvar=True,
    help="own: several replicas have a private network, in which they reach only each other; host: they use "
    "this machine's network. Default: own if the system allows it and the script doesn't seem to need "
    "another network.",
)
@click.option(
    "--volume",
    "volumes",
    multiple=True,
    metavar="NAME=FOLDER",
    help="Use FOLDER for the volume NAME, which only a cluster has.",
)
@click.option(
    "--new",
    is_flag=True,
    envvar="TRAINJOB_NEW",
    show_envvar=True,
    help="If the request differs from those of the job's runs, train it as a new run, such as digits.2.",
)
@click.option("--caller", type=int, hidden=True)
@click.option("--plain", is_flag=True, help="Print lines even where a live display is possible.")
@click.option("--dry-run", is_flag=True, help="Print the TrainJob that would run, and start nothing.")
@click.option(
    "-q",
    "--quiet",
    "detail",
    flag_value=Detail.QUIET,
    type=Detail,
    help="Print only warnings, failures and the result.",
)
@click.option(
    "-v",
    "--verbose",
    "detail",
    flag_value=Detail.VERBOSE,
    type=Detail,
    help="Print every line of the logs, including TensorFlow's harmless ones.",
)
def run(
    source: JobSource,
    fresh: bool,
    resume: str | None,
    folder: Path | None,
    base_port: int | None,
    network: Network | None,
    volumes: tuple[str, ...],
    new: bool,
    caller: int | None,
    plain: bool,
    dry_run: bool,
    detail: Detail | None,
) -> None:
    """Train FILE on this machine: every pod becomes a process, no cluster is needed.

    FILE is a file with a TrainJob, `-` for the standard input, or a Python script, whose job the options
    describe. The arguments after -- are the program's; they replace those in a file.

    A job's name stands for one request: command, arguments, environment, code, and every setting that changes
    what is computed. The same request continues the job's run. Another one is refused, unless --fresh or
    --new says what to do.

    The exit code is 0 when the job is complete or was finished before, 1 when it failed, 3 when it was
    deleted by `trainjob delete`, 130 when it was interrupted.
    """
    if fresh and resume:
        raise click.UsageError("--fresh starts over, and --resume continues: leave out one of the two")
    if source.smoke and (fresh or resume):
        raise click.UsageError("--smoke always starts over, beside the job: leave out --fresh and --resume")
    document = source.for_this_machine()
    try:
        job = document.parse(needs_image=False)
    except InvalidTrainJob as invalid:
        raise RefusedFile(*map(str, invalid.errors)) from invalid
    if job.spec.suspend:
        where = f"{document.source}:{document.line_of('spec.suspend')}"
        raise RefusedFile(f"{where} spec.suspend: is true, so nothing would start; remove it to run the job")
    if dry_run:
        click.echo(print_job(document.raw), nl=False)
        return
    name = "--name NAME" if source.is_script else "--set metadata.name=NAME"
    ways = f"start over: --fresh; train it separately: {name}, or --new"
    if caller is not None:
        ways = "start over: run(fresh=True); train it separately: name=..., or run(new=True)"

    def begun(folder: Path) -> None:
        """Tell Python code that has started this the run's folder; it may have ended."""
        if caller is not None:
            with suppress(OSError), os.fdopen(caller, "wb") as pipe:
                pipe.write(os.fsencode(folder))

    request = RunRequest(
        job=document.raw,
        options=LocalOptions(
            folder=_whole(folder or source.folder / RUNS),
            job_folder=_whole(source.folder),
            volumes=dict(map(_volume, volumes)),
            base_port=base_port,
            network=network,
        ),
        # A change of a script counts, one of a job's file only if the job differs.
        file=None if source.is_script or source.file == STDIN else _whole(Path(source.file)),
        command=_continuing(sys.argv[1:], new=new),
        fresh=fresh,
        resume=resume,
        smoke=source.smoke,
        new=new,
        ways=ways,
        begun=begun,
    )
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for what the terminal's encoding lacks
    try:
        code = asyncio.run(_run(request, detail or Detail.USUAL, plain=plain))
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    sys.exit(code)


def _whole(path: Path) -> Path:
    """Return the path without `..`, so that a folder has one name from wherever it is given."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - links stay


_CODES: Mapping[RunEnd, Exit] = {
    "complete": Exit.GOOD,
    "failed": Exit.FAILED,
    "interrupted": Exit.INTERRUPTED,
    "deleted": Exit.NO_JOB,
}


async def _run(request: RunRequest, detail: Detail, *, plain: bool) -> Exit:
    is_live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    plain = plain or detail is Detail.QUIET or not is_live
    with Interruption() as interruption:
        screen = PlainScreen(interruption.ask, detail) if plain else LiveScreen(detail)
        logging.basicConfig(handlers=[_ScreenHandler(screen)], level=logging.WARNING, force=True)
        try:
            end, lines = await run_here(request, screen, interruption)
        except CannotRunHere as cannot:
            raise RefusedFile(*cannot.lines) from cannot
        except OSError as error:
            if error.filename is None:
                raise
            away = "check that its disk or server can be reached, and run the same command again"
            raise RefusedFile(f"{error.filename}: {error.strerror}; {away}") from error
        finally:
            screen.close()
    code = _CODES[end]
    try:
        print_lines(lines, err=code is not Exit.GOOD)
    except OSError:
        # The reader is gone; without this Python reports it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


class _ScreenHandler(logging.Handler):
    """Shows warnings as notes of the screen; on stderr they would break the live display."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record."""
        self._screen.note(self.format(record))


def _continuing(arguments: list[str], *, new: bool) -> str:
    """Return the command line that continues the job: without --fresh and --resume."""
    words = ["trainjob"]
    if new and "--new" not in arguments:  # the setting may be absent then
        arguments = [*arguments[:1], "--new", *arguments[1:]]
    kept = iter(arguments)
    for word in kept:
        if word == "--":
            words += [word, *kept]
        elif word == "--resume":
            next(kept, None)
        elif word != "--fresh" and not word.startswith("--resume="):
            words.append(word)
    return shlex.join(words)


def _volume(text: str) -> tuple[str, Path]:
    name, separator, folder = text.partition("=")
    if not separator or not name or not folder:
        raise click.BadParameter(f"{text!r} is not NAME=FOLDER", param_hint="--volume")
    path = Path(folder).expanduser()
    if not path.exists():
        raise click.BadParameter(f"there is no {folder}", param_hint="--volume")
    return name, path
