"""`trainjob run`: a TrainJob as processes on this machine."""

import asyncio
import logging
import os
import shlex
import sys
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from trainjob.api import Document, InvalidTrainJob, TrainJob, parse
from trainjob.cli.documents import RefusedFile, choose, folder_of, read_trainjobs
from trainjob.cli.screen import LiveScreen, PlainScreen
from trainjob.client.local_run import Ending, Interruption, Screen, Supervision
from trainjob.client.presenter import Results, describe_end, describe_interruption
from trainjob.client.view import JobView, Outcome
from trainjob.cluster.local import CannotRunHere, LocalCluster, LocalOptions, survey
from trainjob.core.manifests import build_objects
from trainjob.core.names import desired_replicas, root_folder

_FAILED = 1
_INTERRUPTED = 130


@click.command(short_help="Train a job on this machine, without a cluster.")
@click.argument("file", metavar="FILE")
@click.option("--fresh", is_flag=True, help="Start over in a new subfolder of the output (resume: Never).")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs"),
    show_default=True,
    help="Where claims and other volumes become folders.",
)
@click.option(
    "--base-port",
    type=click.IntRange(1024, 65000),
    help="First replica's port for TensorFlow, the next one's is one higher; agents take any that are free.",
)
@click.option(
    "--volume",
    "volumes",
    multiple=True,
    metavar="NAME=FOLDER",
    help="The folder that stands in for a volume which only a cluster has.",
)
@click.option("--plain", is_flag=True, help="Print lines even where a live display is possible.")
@click.option("--name", help="Of several TrainJobs in FILE, the one that is meant.")
def run(
    file: str,
    fresh: bool,
    folder: Path,
    base_port: int | None,
    volumes: tuple[str, ...],
    plain: bool,
    name: str | None,
) -> None:
    """Train FILE on this machine: every pod becomes a process, no cluster is needed.

    The exit code is 0 when the job is complete, 1 when it failed, 130 when it was interrupted.
    """
    document = choose(read_trainjobs(file), name, file)
    options = LocalOptions(
        folder=folder, job_folder=folder_of(file), volumes=dict(map(_volume, volumes)), base_port=base_port
    )
    _make_output_lenient()
    request = _Request(_job(document, fresh=fresh), options, plain=plain or not _is_terminal())
    try:
        code = asyncio.run(_run(request))
    except KeyboardInterrupt:
        code = _INTERRUPTED
    sys.exit(code)


@dataclass(frozen=True)
class _Request:
    job: dict[str, Any]
    options: LocalOptions
    plain: bool


async def _run(request: _Request) -> int:
    with Interruption() as interruption:
        screen: Screen = PlainScreen(on_gone=interruption.ask) if request.plain else LiveScreen()
        logging.basicConfig(handlers=[_ScreenHandler(screen)], level=logging.WARNING, force=True)
        cluster = None
        try:
            place = survey(request.options, os.environ)
            cluster = LocalCluster(
                request.job, place, base_port=request.options.base_port, on_line=screen.line
            )
            job = parse(cluster.job)
            for note in cluster.prepare(build_objects(job)):
                screen.note(note)
            ending = await Supervision(cluster, desired_replicas(job.spec), screen).run(interruption)
        except CannotRunHere as cannot:
            raise RefusedFile(cannot.lines) from cannot
        finally:
            screen.close()
            if cluster is not None:
                await cluster.close()
    return _conclude(ending, _results(cluster, job, ending.job))


class _ScreenHandler(logging.Handler):
    """Shows warnings as notes of the screen; on stderr they would break the live display."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        """Show one record."""
        self._screen.note(self.format(record))


def _conclude(ending: Ending, results: Results) -> int:
    if ending.interrupted:
        _print(describe_interruption(ending.job, results), err=True)
        return _INTERRUPTED
    good = ending.job.outcome is Outcome.COMPLETE
    _print(describe_end(ending.job, results), err=not good)
    return 0 if good else _FAILED


def _print(lines: tuple[str, ...], *, err: bool) -> None:
    try:
        for line in lines:
            click.echo(line, err=err)
    except OSError:
        # The reader is gone; without this Python reports it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _job(document: Document, *, fresh: bool) -> dict[str, Any]:
    try:
        job = document.parse(needs_image=False)
    except InvalidTrainJob as invalid:
        raise RefusedFile(str(error) for error in invalid.errors) from invalid
    if job.spec.suspend:
        where = f"{document.source}:{document.line_of('spec.suspend')}"
        raise RefusedFile(
            [f"{where} spec.suspend: is true, so nothing would start; remove it to run the job"]
        )
    raw = deepcopy(document.raw)
    # In a cluster another controller may manage the job; here there is none.
    raw["spec"].pop("managedBy", None)
    # This run ends with the job, so nothing is left to expire.
    raw["spec"].pop("ttlSecondsAfterFinished", None)
    if fresh:
        raw["spec"]["output"]["resume"] = "Never"
    return raw


def _results(cluster: LocalCluster, job: TrainJob, last: JobView) -> Results:
    pods = {replica.name: replica.pod for replica in last.replicas if replica.pod}
    first = last.status.first_failure
    if first is not None and first.rank and first.pod:
        pods[first.rank] = first.pod
    tails = {pod: cluster.log_tail(pod) for pod in pods.values()}
    if job.spec.restart_strategy == "InPlace" and first is not None and first.pod and first.log_tail:
        # The pod's own log continues after the failure, with lines of the agent and of later attempts.
        tails[first.pod] = tuple(first.log_tail.splitlines())
    logs = {replica: cluster.log_path(pod) for replica, pod in pods.items()}
    root = cluster.output_root
    return Results(
        output=_shown(root) if root else root_folder(job),
        has_model=root is not None and (root / "model").is_dir(),
        has_checkpoints=_has(root, "checkpoints/step-*", otherwise=last.checkpoint_step is not None),
        has_events=_has(root, "**/events.out.tfevents.*", otherwise=last.checkpoint_step is not None),
        logs={replica: _shown(path) for replica, path in logs.items() if path},
        tails=tails,
        command=shlex.join(["trainjob", *sys.argv[1:]]),
        starts_over=job.spec.output.resume == "Never",
    )


def _has(root: Path | None, pattern: str, *, otherwise: bool) -> bool:
    """Return whether the output has such a file, or `otherwise` if the output isn't on this machine."""
    return otherwise if root is None else next(root.glob(pattern), None) is not None


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _volume(text: str) -> tuple[str, Path]:
    name, separator, folder = text.partition("=")
    if not separator or not name or not folder:
        raise click.BadParameter(f"{text!r} is not NAME=FOLDER", param_hint="--volume")
    path = Path(folder).expanduser()
    if not path.exists():
        raise click.BadParameter(f"there is no {folder}", param_hint="--volume")
    return name, path


def _is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _make_output_lenient() -> None:
    """Escape characters that the terminal's encoding lacks, so that printing never fails."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
