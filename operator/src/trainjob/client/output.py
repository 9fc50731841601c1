"""The output of a job: its files are copied and read, wherever they are.

Of a job in a cluster a short-lived pod mounts the output read-only, or reaches its bucket as the replicas do.
`output_archive.py` runs in it, and sends the files through the API server; for a run on this machine it runs
here.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from trainjob.api import InvalidTrainJob, parse
from trainjob.client import output_archive
from trainjob.client.handle import ClusterJob
from trainjob.client.history import History, read_history
from trainjob.client.jobs import follow
from trainjob.client.output_archive import BLOCK, LONGEST_LINE
from trainjob.client.presenter import describe_state
from trainjob.client.problems import ClusterProblem, describe_problem, explain, is_missing
from trainjob.client.view import JobView, manifest_of
from trainjob.cluster.kube.exec import Executed, RunningProgram, start
from trainjob.cluster.kube.informer import Gone, Scope, Seen
from trainjob.cluster.kube.resources import EVENTS, PODS
from trainjob.cluster.protocol import ClusterError, Manifest
from trainjob.core.manifests import READER_CONTAINER, build_output_reader
from trainjob.core.names import has_own_volumes, output_uri, root_folder
from trainjob.core.pods import container_state, event_time, waiting_reason
from trainjob.core.wording import last_line, quoted, visible
from trainjob_trainer.contract.files import EVALUATIONS, HISTORY, RESULT
from trainjob_trainer.contract.replicas import EVALUATOR

if TYPE_CHECKING:
    from trainjob.client.handle import JobHandle
    from trainjob.cluster.kube.client import ApiClient


class NoSuchPath(ClusterProblem):
    """The output doesn't have the path.

    Attributes:
        there: paths that exist instead; folders end with a slash.
    """

    def __init__(self, name: str, path: str, there: tuple[str, ...]) -> None:
        self.there = there
        near = get_close_matches(path, [each.rstrip("/") for each in there], n=1)
        meant = f" (did you mean {visible(near[0])}?)" if near else ""
        shown = ", ".join(map(visible, there)) or "nothing"
        super().__init__(f"the output of {name} has no {visible(path)}{meant}; it has {shown}")


@dataclass(frozen=True)
class Copied:
    """How many files and bytes were copied, so far or in all, and a phrase for each path that can't be."""

    files: int = 0
    size: int = 0
    left_out: tuple[str, ...] = ()


Progress = Callable[[Copied, Copied], None]
"""Is called with what is copied so far and what there is, in a thread."""


def _ignore(*_: object) -> None:
    """Do nothing."""


# Receiving files. A training can write anything into its output, and anything may run in its image. So what
# is sent decides nothing but the names and bytes of plain files, as many as the first line says.


class UnsafeArchive(ClusterProblem):
    """What was sent isn't what `output_archive.py` sends; nothing of it is kept."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the pod sent invalid data for the output, and nothing of it was kept: {why}")


Program: TypeAlias = "RunningProgram | LocalProgram"
"""The running `output_archive.py`."""


class LocalProgram:
    """The program as a process of this machine, with the methods of `RunningProgram`."""

    def __init__(self, folder: Path, request: Mapping[str, Any]) -> None:
        words = [sys.executable, "-I", "-S", output_archive.__file__, str(folder), json.dumps(request)]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.stop, self.close = self._process.kill, self._process.communicate

    def read(self) -> bytes:
        """Return the next piece of its output; an empty one at its end."""
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        return self._process.stdout.read(BLOCK)

    @property
    def result(self) -> Executed:
        """Return how it ended."""
        assert self._process.stderr is not None  # noqa: S101 - a pipe
        complaint = self._process.stderr.read()
        return Executed(self._process.wait(), complaint.decode(errors="replace"))


class _Printed(io.RawIOBase):
    """A program's output as Python reads files."""

    def __init__(self, program: Program) -> None:
        self._program, self._rest = program, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._rest or self._program.read()
        count = min(len(buffer), len(piece))
        buffer[:count], self._rest = piece[:count], piece[count:]
        return count


def receive(name: str, program: Program, into: Path, progress: Progress = _ignore) -> Copied:
    """Write the files that a program sends into a folder that only this process writes into.

    Raises:
        NoSuchPath: there is no such path.
        UnsafeArchive: it sends something else.
        ClusterProblem: the program failed, or the connection broke off.
        OSError: a file can't be written.
    """
    stream, copied = io.BufferedReader(_Printed(program), BLOCK), None
    try:
        header = _read_line(stream)
        missing, there = header.get("missing"), header.get("there")
        if missing == "":
            raise ClusterProblem(f"{name} has no output yet")
        if isinstance(missing, str) and isinstance(there, list):
            raise NoSuchPath(name, missing, tuple(map(str, there)))
        copied = unpack(stream, into, header, progress)
        if stream.read(1):
            raise UnsafeArchive("something follows its end")
    except EOFError:
        pass
    except OSError as error:
        if error.errno not in _REFUSED_NAMES or not error.filename:
            raise
        path = os.path.relpath(error.filename, into)
        raise UnsafeArchive(f"{visible(path)} can't be written: {error.strerror}") from error
    result = program.result
    if copied is not None and result.code == 0:
        return copied
    if result.code == 0:
        why = "was not received completely (its end is missing); try again"
    else:
        again = "" if result.code is None else "; try again, if it has just changed"
        why = f"can't be read: {quoted(last_line(result.complaint))}{again}"
    raise ClusterProblem(f"the output of {name} {why}")


def unpack(stream: BinaryIO, into: Path, header: Mapping[str, Any], progress: Progress = _ignore) -> Copied:
    """Write the files that follow the first line, and return what was copied.

    Raises:
        UnsafeArchive: it isn't what `output_archive.py` sends, or more than the first line says.
        EOFError: it ends before its end.
        OSError: a file can't be written.
    """
    total, folders = Copied(_number(header, "files"), _number(header, "bytes")), _number(header, "folders")
    files = size = 0
    written = set[int]()
    while "leftOut" not in (line := _read_line(stream)):
        path = safe_path(into, line.get("path"))
        offset, left = (_number(line, "offset"), _number(line, "bytes")) if "bytes" in line else (0, 0)
        files, folders, size = files + ("bytes" in line), folders - ("bytes" not in line), size + left
        if files > total.files or folders < 0 or size > total.size:
            raise UnsafeArchive(f"{visible(line['path'])} is more than was announced")
        if "bytes" not in line:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            there = os.fstat(file.fileno())
            if there.st_ino in written:  # also where a disk doesn't tell a from A
                raise UnsafeArchive(f"{visible(line['path'])} comes twice, perhaps in another spelling")
            if offset not in (0, there.st_size):
                raise UnsafeArchive(f"{visible(line['path'])} doesn't continue the file that is there")
            written.add(there.st_ino)
            file.truncate(offset)
            while left:
                piece = stream.read(min(left, BLOCK))
                if not piece:
                    raise EOFError
                file.write(piece)
                left -= len(piece)
                progress(Copied(files - 1, size - left), total)
        progress(Copied(files, size), total)
    if not isinstance(line["leftOut"], list):
        raise UnsafeArchive("its last line is no list of what was left out")
    return Copied(files, size, tuple(map(visible, line["leftOut"])))


def _read_line(stream: BinaryIO) -> dict[str, Any]:
    text = stream.readline(LONGEST_LINE)
    if not text.endswith(b"\n") and len(text) < LONGEST_LINE:
        raise EOFError
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict):
        raise UnsafeArchive(f"{visible(text)} is no line about a file")
    return line


def _number(line: Mapping[str, Any], name: str) -> int:
    number = line.get(name)
    if type(number) is not int or not 0 <= number < 1 << 63:
        raise UnsafeArchive(f"{name} must be a whole number from 0, got {visible(number)}")
    return number


_REFUSED_NAMES = frozenset(
    [errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL]
)
"""What a disk says of names that it can't have, beside each other or at all."""

_DEEPEST = 100
"""Folders: one of thousands in each other can hardly be deleted again."""


def safe_path(into: Path, name: object) -> Path:
    """Return the path of a file below `into`.

    Raises:
        UnsafeArchive: it would lie elsewhere.
    """
    parts = name.split("/") if isinstance(name, str) else []
    if not parts or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise UnsafeArchive(f"{visible(name)} is no path in a job's output")
    try:
        os.fsencode("/".join(parts))
    except UnicodeEncodeError as error:
        raise UnsafeArchive(f"{visible(name)} is no path in a job's output") from error
    if len(parts) > _DEEPEST:
        raise UnsafeArchive(f"{visible(parts[0])} has more than {_DEEPEST} folders in each other")
    return into.joinpath(*parts)


_EVENTS_AND_LINES = r"events\.out\.tfevents\.[^/]*$|\.jsonl$"
_FOR_TENSORBOARD = r"events\.out\.tfevents\.[^/]*$|/plugins/"


class Output:
    """The output of a job, from `open_output`; `run` starts `output_archive.py` with a request."""

    def __init__(
        self, name: str, run: Callable[[Mapping[str, Any]], Awaitable[Program]], folder: Path | None = None
    ) -> None:
        self._name, self._run, self._folder = name, run, folder

    async def copy(self, path: str, target: Path, progress: Progress = _ignore) -> Copied:
        """Copy a file or folder, or with an empty path all, to `target`, which appears when it is complete.

        Raises:
            FileExistsError: the target exists.
            NoSuchPath: the output has no such path.
            ClusterProblem: it can't be read.
            OSError: it can't be written.
        """
        inner = path.strip("/")
        if path.startswith("/") or not {".", ".."}.isdisjoint(inner.split("/")):
            raise ClusterProblem(
                f"{path} is no path in the output of {self._name}: write it as model, or logs"
            )
        with _new(target) as (folder, put_in_place):
            copied = await self._fetch({"paths": [inner]}, folder, progress)
            if not (folder / inner).exists():
                why = copied.left_out[0] if copied.left_out else f"{path} was not sent"
                raise ClusterProblem(f"nothing is copied from the output of {self._name}: {why}")
            put_in_place(folder / inner)
        return copied

    async def model(self, target: Path) -> None:
        """Copy what `train_and_evaluate` has exported, or the `.keras` files that a script has saved itself.

        Raises:
            FileExistsError, ClusterProblem, OSError: see `copy`.
        """
        try:
            await self.copy("model", target)
        except NoSuchPath as missing:
            saved = [path for path in missing.there if path.endswith(".keras")]
        else:
            return
        if not saved:
            raise ClusterProblem(
                f"{self._name} has no model: train_and_evaluate saves one at its end; a script or function "
                "has to save its own: model.save(os.environ['TRAINJOB_OUTPUT_DIR'] + '/model.keras')"
            )
        with _new(target) as (folder, put_in_place):
            await self._fetch({"paths": saved}, folder)
            put_in_place(folder)

    async def history(self, on_damage: Callable[[str], None]) -> History:
        """Return the metrics over the steps: see `read_history`."""
        if self._folder is not None:
            return read_history(self._folder, on_damage)
        paths = ["logs/train", HISTORY, f"{EVALUATOR}/{EVALUATIONS}"]
        with tempfile.TemporaryDirectory(prefix="trainjob-") as folder:
            await self._fetch({"paths": paths, "optional": True, "pattern": _EVENTS_AND_LINES}, Path(folder))
            return read_history(Path(folder), on_damage)

    async def result(self) -> Any:
        """Return what the job's function has returned.

        Raises:
            NoSuchPath: there is no result.
            ClusterProblem: it can't be read.
        """
        with tempfile.TemporaryDirectory(prefix="trainjob-") as folder:
            await self._fetch({"paths": [RESULT]}, Path(folder))
            try:
                return json.loads((Path(folder) / RESULT).read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError) as error:
                raise ClusterProblem(f"{RESULT} in the output of {self._name} is no JSON: {error}") from error

    async def update(self, folder: Path) -> Copied:
        """Add to a folder what TensorBoard shows and what isn't in it yet; files grow in place."""
        files = [path for path in folder.rglob("*") if path.is_file()]  # noqa: ASYNC240 - few
        sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
        return await self._fetch({"paths": [""], "pattern": _FOR_TENSORBOARD, "sizes": sizes}, folder)

    async def _fetch(self, request: Mapping[str, Any], into: Path, progress: Progress = _ignore) -> Copied:
        program = await self._run(request)
        receiving = asyncio.ensure_future(asyncio.to_thread(receive, self._name, program, into, progress))
        try:
            return await asyncio.shield(receiving)
        except ClusterError as error:
            raise explain(error) from error
        finally:
            program.stop()
            await asyncio.gather(receiving, return_exceptions=True)  # its files are removed only then
            program.close()


@contextmanager
def _new(target: Path) -> Iterator[tuple[Path, Callable[[Path], None]]]:
    """Give a folder beside the target, and what moves its content there; nothing of it stays."""

    def put_in_place(path: Path) -> None:
        refuse_existing()
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)

    def refuse_existing() -> None:
        if target.exists() or target.is_symlink():
            raise FileExistsError(f"{target} exists already: remove it, or name another one")

    refuse_existing()
    beside = next(folder for folder in target.absolute().parents if folder.exists())
    if not beside.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(beside))
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=beside) as private:
        folder = Path(private) / "files"
        folder.mkdir()
        yield folder, put_in_place


@asynccontextmanager
async def open_output(
    handle: JobHandle, job: JobView, note: Callable[[str], None] = _ignore
) -> AsyncIterator[Output]:
    """Open the output of a job for an `async with` block, with which the pod that reads it in a cluster ends.

    `note` receives sentences about what is waited for.

    Raises:
        ClusterProblem: it can't be read; the message says why.
    """
    if job.folder:
        folder = Path(job.folder)

        async def run_here(request: Mapping[str, Any]) -> Program:
            return LocalProgram(folder, request)

        yield Output(job.name, run_here, folder)
        return
    assert isinstance(handle, ClusterJob)  # noqa: S101 - it has no folder
    async with _reader_of(handle.api, job, note) as run_there:
        yield Output(job.name, run_there)


# The pod that reads the output of a job in a cluster.


_START_SECONDS = 300.0
"""Its image may have to be pulled, and a node to be added."""

_DELETE_SECONDS = 10.0

_FINAL = (
    *("ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
    *("CreateContainerConfigError", "CreateContainerError", "RunContainerError", "StartError"),
)
"""Reasons for which a container waits, after which waiting seldom helps."""

_NEEDED = (
    "to read a job's output you need create, list, watch and delete of pods, and create and get of pods/exec"
)


@asynccontextmanager
async def _reader_of(
    api: ApiClient, job: JobView, note: Callable[[str], None]
) -> AsyncIterator[Callable[[Mapping[str, Any]], Awaitable[Program]]]:
    """Create the pod, give what starts the program in it, and delete the pod."""
    pod, (root, uri) = plan_reader(job, token_hex(4))
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    interpreter = pod["spec"]["containers"][0]["command"][0]
    source = inspect.getsource(output_archive)

    async def run_there(request: Mapping[str, Any]) -> Program:
        # A client for buckets is among the packages of the image, which -S leaves out.
        plain, asked = ([] if uri else ["-S"]), [root, json.dumps(request), *([uri] if uri else [])]
        command = [interpreter, "-I", *plain, "-c", source, *asked]
        try:
            return await start(api.access, namespace, name, READER_CONTAINER, command)
        except ClusterError as error:
            raise _explained(error) from error

    try:
        try:
            await api.create(PODS, pod)
            await _until_it_runs(api, namespace, name, note)
        except ClusterError as error:
            raise _explained(error) from error
        yield run_there
    finally:
        why = ""
        try:
            async with asyncio.timeout(_DELETE_SECONDS):
                await api.delete(PODS, namespace, name, uid="")  # no other pod has its random name
        except TimeoutError:
            why = "the API server doesn't answer"
        except ClusterError as error:
            if error.failure.code != 404:  # it was never created
                why = describe_problem(error)
        if why:
            note(f"the pod {name} can't be deleted ({why}); it ends by itself within an hour")


def plan_reader(job: JobView, suffix: str) -> tuple[Manifest, tuple[str, str]]:
    """Return the pod to create, the job's output folder in it, and its address if it is in a bucket.

    Raises:
        ClusterProblem: there is no output to read.
    """
    try:
        spec = parse(manifest_of(job), has_begun=True)
    except InvalidTrainJob as invalid:
        raise ClusterProblem(
            f"{job.name} has no output: its spec is invalid ({invalid.errors[0]})"
        ) from invalid
    if has_own_volumes(spec):
        raise ClusterProblem(
            f"the output of {job.name} is in a volume that is deleted with its pod: use spec.output.claim, "
            "nfs, csi or uri to keep it"
        )
    if job.status.start_time is None:
        raise ClusterProblem(f"{job.name} has no output yet: {describe_state(job)}")
    return build_output_reader(spec, suffix), (root_folder(spec), output_uri(spec))


def _explained(error: ClusterError) -> ClusterProblem:
    problem, failure = explain(error), error.failure
    if failure.code == 403 and "cannot" in failure.message:
        return type(problem)(f"{problem}; {_NEEDED}")
    if failure.code in (400, 403, 422) and failure.resource == PODS.plural:
        return ClusterProblem(f"the pod that reads the output is refused: {failure.message}")
    if is_missing(error):
        return ClusterProblem("the pod that reads the output was deleted")
    return problem


async def _until_it_runs(api: ApiClient, namespace: str, name: str, note: Callable[[str], None]) -> None:
    """Wait until the pod runs; raises `ClusterProblem` if it ended, or can't start."""
    why = "its state isn't known yet"
    try:
        async with (
            asyncio.timeout(_START_SECONDS),
            aclosing(follow(api, Scope(PODS, namespace, fields=f"metadata.name={name}"))) as changes,
        ):
            async for change in changes:
                if isinstance(change, Gone):
                    raise ClusterProblem("the pod that reads the output was deleted")
                if not isinstance(change, Seen):
                    continue
                before, (why, is_final) = why, why_not_running(change.manifest)
                if not why:
                    return
                if is_final:
                    raise ClusterProblem(f"the pod {name}, which reads the output, can't start: {why}")
                if why not in (before, _STARTING):
                    note(f"waiting for the pod that reads the output: {why}")
    except TimeoutError:
        with suppress(ClusterError):  # the last warning, such as one about its volume, says more
            events = await api.list(EVENTS, namespace, fields=f"involvedObject.name={name}")
            warnings = [event for event in events.get("items") or () if event.get("type") == "Warning"]
            if warnings:
                last = max(warnings, key=event_time)
                why = f"{last.get('reason')}: {quoted(str(last.get('message')))}"
        minutes = f"{_START_SECONDS / 60:g} minutes"
        raise ClusterProblem(
            f"the pod {name}, which reads the output, didn't start within {minutes}: {why}"
        ) from None


_STARTING = "it is starting"


def why_not_running(pod: Mapping[str, Any]) -> tuple[str, bool]:
    """Return why a pod doesn't run, empty if it does, and whether it never will."""
    status = pod.get("status") or {}
    state = container_state(status, READER_CONTAINER)
    if "running" in state:
        return "", False
    if "terminated" in state or status.get("phase") in ("Failed", "Succeeded"):
        ended = state.get("terminated") or {}
        reason = str(status.get("reason") or ended.get("reason") or "it has ended")
        message = quoted(str(status.get("message") or ended.get("message") or ""))
        return f"{reason}: {message}" if message else reason, True
    waiting = waiting_reason(status, state)
    if waiting is None:
        return _STARTING, False
    reason, message = waiting
    return f"{reason}: {message}" if message else reason, reason in _FINAL
