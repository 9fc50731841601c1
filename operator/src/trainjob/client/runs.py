"""A run on this machine as a job: while it runs it is reached through a socket, then by its folder."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import TypeAdapter, ValidationError

from trainjob.api import InvalidTrainJob
from trainjob.client.history import files_in
from trainjob.client.presenter import Results, describe_deletion, describe_state
from trainjob.client.problems import ClusterProblem, NoJob
from trainjob.client.run_record import Run, forget, read_run_folder
from trainjob.client.view import JobView
from trainjob.cluster.local import CannotRunHere, PrivateFolder, remove_folder, remove_stale
from trainjob.cluster.local.process import LONGEST_LINE, TextLines, log_files_of
from trainjob.core.agent_reports import read_replica
from trainjob_trainer.contract.replicas import ROLES

if TYPE_CHECKING:
    from trainjob.client.job_logs import Wanted  # slow to import, as the client of an API server is

# The protocol: a connection has one request, a line of JSON, and one response; `watch` has many.
#
#     {"verb": "view"}                       {"view": {...}}
#     {"verb": "watch"}                      {"view": {...}}, now and after each change
#     {"verb": "patch", "spec": {...}}       {"view": {...}} or {"refused": ["..."]}
#     {"verb": "delete"}                     {}; the connection is closed when all processes have ended
#
# Only the same user may connect: the socket has mode 0600, in a folder with mode 0700.


_LONGEST_LINE = 1 << 24
_PATIENCE_SECONDS = 5.0
"""A run that doesn't respond for so long is stopped, or its machine is."""

_LONGEST_PATH = 100  # bytes that every system allows for the path of a socket

_adapter = cache(TypeAdapter[JobView])  # built with the first message


def _dump(view: JobView) -> dict[str, Any]:
    return {"view": _adapter(JobView).dump_python(view, mode="json", by_alias=True)}


class RunControls(Protocol):
    """What other processes can do with a run."""

    @property
    def latest(self) -> JobView:
        """Return the job as it is now."""

    async def later_than(self, view: JobView) -> JobView:
        """Return the job once it has changed."""

    def patch(self, spec: Mapping[str, Any]) -> None:
        """Merge this into the job's spec; raises `InvalidTrainJob` or `CannotRunHere`."""

    def delete(self) -> None:
        """Ask the run to end."""


@asynccontextmanager
async def serve(controls: RunControls) -> AsyncGenerator[str]:
    """Answer the user's other processes, at the socket whose path it gives, until the block ends.

    Raises:
        OSError: no socket can be created.
    """
    connections, folder = set[asyncio.Task[Any]](), _private_folder()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio runs this as a task
        connections.add(task)
        try:
            await _answer(controls, json.loads(await reader.readline()), writer)
        except (OSError, ValueError, asyncio.CancelledError):
            pass  # the other process is gone, sends something else, or the run ends
        finally:
            connections.discard(task)
            writer.close()

    try:
        path = folder.path / "run"
        server = await asyncio.start_unix_server(accept, path, limit=_LONGEST_LINE)
        path.chmod(0o600)
        try:
            yield str(path)
        finally:
            server.close()
            for connection in connections:
                connection.cancel()
            await asyncio.gather(*connections, return_exceptions=True)
    finally:
        folder.remove()


async def _answer(controls: RunControls, request: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
    match request:
        case {"verb": "view"}:
            await _send(writer, _dump(controls.latest))
        case {"verb": "watch"}:
            view = controls.latest
            while True:
                await _send(writer, _dump(view))
                view = await controls.later_than(view)
        case {"verb": "patch", "spec": dict(spec)}:
            refused: Iterable[object] = ()
            try:
                controls.patch(spec)
            except InvalidTrainJob as invalid:
                refused = invalid.errors
            except CannotRunHere as cannot:
                refused = cannot.lines
            await _send(writer, {"refused": [*map(str, refused)]} if refused else _dump(controls.latest))
        case {"verb": "delete"}:
            await _send(writer, {})
            controls.delete()
            await asyncio.Event().wait()  # until the block of `serve` ends
        case _:
            await _send(writer, {"refused": [f"this run knows no request such as {request}"]})


async def _send(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")
    await writer.drain()


def _parents() -> list[Path]:
    """Return the folders that may hold a socket, whose path has to be short."""
    known = (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp")  # noqa: S108 - mkdtemp
    longest = _LONGEST_PATH - len("/trainjob-01234567/run")
    return [Path(parent) for parent in known if parent and len(os.fsencode(parent)) <= longest]


def _private_folder() -> PrivateFolder:
    for parent in _parents():
        with suppress(OSError):
            return PrivateFolder(parent)
    raise OSError("no folder for a socket: set TMPDIR to one with a short path")


class NotReached(Exception):
    """The run doesn't respond: it has just ended, or is stopped."""


@asynccontextmanager
async def _asked(run: Run, request: Mapping[str, Any]) -> AsyncGenerator[asyncio.StreamReader]:
    """Send a request to a run, and give the stream of its responses.

    Raises:
        NotReached: it can't be sent.
    """
    path = run.record.socket
    try:
        facts = os.stat(path)  # noqa: PTH116 - a record may lie where others can write
        if not stat.S_ISSOCK(facts.st_mode) or facts.st_uid != os.geteuid():
            raise NotReached
        async with asyncio.timeout(_PATIENCE_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path, limit=_LONGEST_LINE)
    except (OSError, ValueError) as error:
        raise NotReached from error
    try:
        await _send(writer, request)
        yield reader
    except ConnectionError as error:
        raise NotReached from error
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader, patience: float | None = _PATIENCE_SECONDS) -> dict[str, Any]:
    """Return the next response.

    Raises:
        NotReached: the run has ended, or doesn't respond in time.
    """
    try:
        async with asyncio.timeout(patience):
            response = json.loads(await reader.readline())
    except (OSError, ValueError) as error:
        raise NotReached from error
    return response if isinstance(response, dict) else {}


def _read_view(run: Run, response: Mapping[str, Any]) -> JobView:
    try:
        view = _adapter(JobView).validate_python(response.get("view"), by_alias=True)
    except ValidationError as error:
        raise NotReached from error
    return replace(view, name=run.name, folder=str(run.folder), request=run.record.request)


# The logs of a run: for each replica one file, or several, with all of its attempts and earlier runs.


_POLL_SECONDS = 0.2
_PIECE = 1 << 16
"""Bytes of a log that are read at a time."""


def log_files(folder: Path, wanted: Wanted | None = None) -> dict[str, list[Path]]:
    """Return the log files of the requested replicas in a run's folder, by replica, in order of roles.

    Those of one replica are in order of time. What is no file, such as a pipe that somebody has put there, is
    left out: to open one may take for ever.
    """
    found = {read_replica(path.stem): path for path in files_in(folder / "logs" / "replicas", "*.log")}
    shown = sorted(
        (each for each in found if each is not None and (wanted is None or wanted.takes(each))),
        key=lambda each: (ROLES.index(each.role), each.index),
    )
    files = {each.name: list(filter(Path.is_file, log_files_of(found[each]).values())) for each in shown}
    return {replica: paths for replica, paths in files.items() if paths}


class LogFile:
    """Reads a log file that grows.

    Args:
        path: the file.
        start: where to begin.
        end: where to stop; None: at its end.
    """

    def __init__(self, path: Path, start: int = 0, end: int | None = None) -> None:
        self._path, self._position, self._end = path, start, end
        self._lines = TextLines(2 * LONGEST_LINE)  # as long as they are written, with how much was left out

    def read(self, *, whole: bool = False) -> Iterator[list[str]]:
        """Yield the lines since the last call by pieces; `whole`: also a last one without a line end."""
        with suppress(OSError), self._path.open("rb") as file:
            file.seek(self._position)
            while data := file.read(_PIECE if self._end is None else min(_PIECE, self._end - self._position)):
                self._position += len(data)
                yield self._lines.feed(data)
        if whole:
            yield self._lines.end()


def results_in(folder: Path) -> Results:
    """Return where the output and the logs of a run are."""
    output, has_checkpoints = shown_path(folder), any(files_in(folder, "checkpoints/step-*"))
    return Results(
        output=output,
        models=models_in(folder),
        checkpoints=f"{output}/checkpoints" if has_checkpoints else "",
        has_events=any(files_in(folder, "**/events.out.tfevents.*")),
        logs={replica: shown_path(paths[-1]) for replica, paths in log_files(folder).items()},
    )


def models_in(folder: Path) -> tuple[str, ...]:
    """Return the models in an output folder: that of its own, and what the script has saved there itself."""
    found = [path for pattern in _MODELS for path in files_in(folder, pattern)]
    names = {
        str(path.parent if path.suffix == ".pb" else path)
        for path in (one.relative_to(folder) for one in found)
    }
    own = sorted(name for name in names if name.split("/")[0] not in ("checkpoints", "model"))
    return (*(["model"] if (folder / "model").is_dir() else []), *own)


_MODELS = tuple(f"{depth}{name}" for depth in ("", "*/") for name in ("*.keras", "*.h5", "*/saved_model.pb"))


def shown_path(path: Path) -> str:
    """Return a path as it is shown: relative, if it lies below the working directory."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    size = 0
    for inner, _, files in os.walk(folder):
        for name in files:
            with suppress(OSError):
                size += (Path(inner) / name).lstat().st_size
    return size


_GOING_SECONDS = 60.0
"""More than a run takes to end its replicas."""


class LocalJob:
    """A run on this machine; `ClusterJob` has the same methods.

    Args:
        run: as it was found.
    """

    place = "this machine"

    def __init__(self, run: Run) -> None:
        self._run, self.name, self.folder = run, run.name, run.folder

    async def view(self) -> JobView:
        """Return the job as it is now."""
        run = self._read_run()
        if run.is_running:
            with suppress(NotReached):
                return await self._ask(run, {"verb": "view"})
            run = self._read_run()
        return run.view

    async def changes(self) -> AsyncGenerator[JobView]:
        """Yield the job now and after each change, and end with the state in which it is over."""
        last: JobView | None = None
        while True:
            try:
                run = self._read_run(last)
            except NoJob:
                if last is not None and last.is_over:
                    return  # deleted since, or the record is that of the earlier run, which had finished
                raise
            if not run.is_running:
                yield run.view
                return
            is_reached = False
            with suppress(NotReached):
                async with _asked(run, {"verb": "watch"}) as responses:
                    while True:
                        last = _read_view(run, await _read(responses, None))
                        is_reached = True
                        yield last
            if not is_reached and run.view != last:  # it is stopped, or on another machine
                last = run.view
                yield last
            await asyncio.sleep(_POLL_SECONDS)

    async def log_lines(
        self, wanted: Wanted, *, follow: bool = False, tail: int | None = None, previous: bool = False
    ) -> AsyncGenerator[tuple[str, str]]:
        """Yield lines, one replica after the other; `previous`: those of the runs before in this folder."""

        async def until_over() -> None:
            async with aclosing(self.changes()) as changes:
                async for _ in changes:
                    pass

        run, files = self._read_run(), dict[Path, LogFile]()
        over = asyncio.ensure_future(until_over() if follow else asyncio.sleep(0))
        if not follow:
            await over
        try:
            while True:
                is_over = over.done()
                for replica, paths in log_files(self.folder, wanted).items():
                    last = deque[str](maxlen=tail)
                    for path in paths:
                        if path not in files:
                            start = run.record.log_starts.get(path.stem, 0)
                            files[path] = LogFile(path, 0, start) if previous else LogFile(path, start)
                        for lines in files[path].read(whole=is_over):
                            last += lines
                            while tail is None and last:
                                yield replica, last.popleft()
                            await asyncio.sleep(0)
                    for line in last:
                        yield replica, line
                tail = None
                if is_over:
                    break
                await asyncio.wait([over], timeout=_POLL_SECONDS)
            over.result()
        finally:
            over.cancel()
            await asyncio.gather(over, return_exceptions=True)

    async def patch(self, spec: Mapping[str, Any]) -> JobView:
        """Merge this into the spec of the running job, and return the changed job."""
        run = self._read_run()
        if not run.is_running:
            raise ClusterProblem(f"{self.name} has ended: {describe_state(run.view)}")
        try:
            return await self._ask(run, {"verb": "patch", "spec": dict(spec)})
        except NotReached as error:
            raise self._not_reached(run) from error

    async def delete(self) -> None:
        """Stop the run, and remove its folder."""
        running = self._read_run()
        try:
            if running.is_running:
                async with _asked(running, {"verb": "delete"}) as responses:
                    await _read(responses)
                    with suppress(NotReached):
                        await _read(responses, None)  # until the connection is closed
        except NotReached as error:
            if self._read_run().is_running:
                raise self._not_reached(running) from error
        until = asyncio.get_running_loop().time() + _GOING_SECONDS
        while True:
            try:
                remove_folder(self.folder)
            except CannotRunHere as cannot:
                # The last processes of a run that was stopped or killed hold the folder a moment longer.
                run = read_run_folder(self.folder)
                is_ending = run is not None and (run.record.end == "deleted" or not run.is_running)
                if not is_ending or asyncio.get_running_loop().time() > until:
                    raise ClusterProblem(str(cannot)) from cannot
            else:
                for parent in _parents():
                    remove_stale(parent)  # sockets that killed runs have left
                forget(self.folder)
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _ask(self, run: Run, request: Mapping[str, Any]) -> JobView:
        async with _asked(run, request) as responses:
            response = await _read(responses)
        if refused := response.get("refused"):
            raise ClusterProblem("\n".join(map(str, refused)))
        return _read_view(run, response)

    def _not_reached(self, run: Run) -> ClusterProblem:
        where = "" if run.is_here else f" on {run.record.host}"
        return ClusterProblem(
            f"the run of {self.name} (process {run.record.pid}{where}) doesn't respond: if it is stopped, "
            "continue or end it"
        )

    def _read_run(self, last: JobView | None = None) -> Run:
        run = read_run_folder(self.folder)
        is_replaced = run is not None and run.record.view.uid != self._run.record.view.uid
        is_deleted = run is not None and run.record.end == "deleted" and last is not None
        if run is None or is_deleted or is_replaced:
            raise NoJob(describe_deletion(self.name, last, replaced=is_replaced))
        return run
