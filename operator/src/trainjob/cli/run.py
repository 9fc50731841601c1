"""`trainjob run`: a TrainJob as processes on this machine."""

import asyncio
import logging
import os
import secrets
import shlex
import signal
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from trainjob.api import Document, InvalidTrainJob, TrainJob, parse
from trainjob.cli.documents import RefusedFile, choose, folder_of, read_trainjobs
from trainjob.cli.job import Job, Outcome, read_run
from trainjob.cli.presenter import Results, describe_end, describe_interruption
from trainjob.cli.screen import LiveScreen, PlainScreen, Screen
from trainjob.cluster.local import CannotRunHere, LocalCluster, LocalOptions, survey
from trainjob.cluster.protocol import happens_within
from trainjob.controller import Controller
from trainjob.core.manifests import build_objects
from trainjob.core.names import Replica, desired_replicas, root_folder
from trainjob.core.settings import Bundle, Settings

# Stop signals: the first asks the run to stop, the second kills its processes.


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Handles the signals that ask a program to stop; use it within one event loop.

    Attributes:
        asked: set by the first signal.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._insisted: Callable[[], None] = lambda: None
        # `nohup` makes a program ignore SIGHUP, so that it outlives its terminal.
        outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._heard = (signal.SIGINT, signal.SIGTERM) if outlives else _SIGNALS

    def on_second(self, call: Callable[[], None]) -> None:
        """Set the callback for every request after the first."""
        self._insisted = call

    def ask(self) -> None:
        """Ask to stop, as a signal does."""
        if self.asked.is_set():
            self._insisted()
        self.asked.set()

    def __enter__(self) -> "Interruption":
        loop = asyncio.get_running_loop()
        for number in self._heard:
            loop.add_signal_handler(number, self.ask)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in self._heard:
            loop.remove_signal_handler(number)


# One job, run to its end on this machine, with a display.


# The time after Ctrl-C in which replicas can save a checkpoint; a second Ctrl-C kills them at once.
GRACE_SECONDS = 10.0
_REFRESH_SECONDS = 0.25

_STOPPING = f"stopping: replicas have {GRACE_SECONDS:g} s to save; another Ctrl-C ends them at once"


@dataclass(frozen=True)
class Ending:
    """The end of a run.

    Attributes:
        job: its state at that time.
        interrupted: a stop was requested before the job had ended.
    """

    job: Job
    interrupted: bool


class Supervision:
    """Runs the controller on a local cluster and keeps a screen up to date.

    Args:
        cluster: a prepared cluster; `run` always closes it.
        replicas: every replica of the job.
        screen: the display.
        clock: returns the current time.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        replicas: tuple[Replica, ...],
        screen: Screen,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._screen = screen
        self._clock = clock
        self._since = clock()

    async def run(self, interruption: Interruption) -> Ending:
        """Run the job until it ends or a stop is requested; no process of it is left afterwards."""
        interruption.on_second(self._cluster.kill)
        showing = asyncio.ensure_future(self._keep_showing())
        try:
            interrupted = await self._until_end(interruption)
            if interrupted:
                self._screen.note(_STOPPING)
            else:
                job = self._read()
                showing.cancel()
                self._screen.show(job)
        finally:
            await self._cluster.close(GRACE_SECONDS)
            showing.cancel()
            (problem,) = await asyncio.gather(showing, return_exceptions=True)
        if isinstance(problem, Exception):
            raise problem
        return Ending(self._read() if interrupted else job, interrupted)

    async def _until_end(self, interruption: Interruption) -> bool:
        """Return whether a stop was requested before the job has ended."""
        if interruption.asked.is_set():
            return True  # nothing is started yet
        controller = Controller(self._cluster, settings=_settings())
        finished = asyncio.ensure_future(controller.run_until_finished(self._cluster.key))
        asked = asyncio.ensure_future(interruption.asked.wait())
        try:
            await asyncio.wait([finished, asked], return_when=asyncio.FIRST_COMPLETED)
            if finished.done():
                finished.result()
            return not finished.done()
        finally:
            for task in (finished, asked):
                task.cancel()
            await asyncio.gather(finished, asked, return_exceptions=True)

    async def _keep_showing(self) -> None:
        changed = asyncio.Event()
        self._cluster.watch(lambda _: changed.set())
        while True:
            self._screen.show(self._read())
            changed.clear()
            await happens_within(changed, _REFRESH_SECONDS)

    def _read(self) -> Job:
        return read_run(self._cluster.snapshot(), self._replicas, since=self._since, now=self._clock())


def _settings() -> Settings:
    # Only the agents of this run have this key; the local cluster provides the agent program.
    return Settings(bundle=Bundle(pyz=b"", key=secrets.token_bytes(32)))


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
        job = document.parse()
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


def _results(cluster: LocalCluster, job: TrainJob, last: Job) -> Results:
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
