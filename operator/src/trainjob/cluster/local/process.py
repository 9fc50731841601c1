"""One running replica: its launcher, its output, and its exit."""

import asyncio
import codecs
import json
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from trainjob.cluster.agents.bundle import PACKAGE
from trainjob.cluster.local.launch import Launch
from trainjob_trainer.contract.files import APPENDING

LONGEST_LINE = 4096
"""Characters of one line that are kept."""

TAIL_BYTES = 3072
"""Bytes of the last lines in a termination message (the kubelet keeps the last 4,096 bytes)."""

_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class TextLines:
    """Splits a stream of bytes into lines; replaces invalid UTF-8, and removes colours and cursor moves.

    A progress bar that redraws itself with carriage returns counts as one line: its last state. Of a longer
    line the beginning is kept, with the number of characters left out, however long it is.
    """

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._longest = longest
        self._open: list[str] = []
        self._size = 0
        self._returned = False

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes."""
        return self._take(self._decoder.decode(data))

    def end(self) -> list[str]:
        """Return the rest when the stream has ended, including a last line without a line end."""
        lines = self._take(self._decoder.decode(b"", final=True))
        if self._size:
            lines.append(self._close())
        return lines

    def _take(self, text: str) -> list[str]:
        *complete, rest = text.split("\n")
        lines = []
        for part in complete:
            self._extend(part)
            lines.append(self._close())
        self._extend(rest)
        return lines

    def _extend(self, text: str) -> None:
        body = text.rstrip("\r")
        if not body:
            self._returned = self._returned or bool(text)
            return
        start = body.rfind("\r") + 1
        if self._returned or start:
            self._open, self._size = [], 0
        # A carriage return at the end may be the first half of a "\r\n".
        self._returned = len(body) < len(text)
        if self._size < self._longest:
            self._open.append(body[start : start + self._longest - self._size])
        self._size += len(body) - start

    def _close(self) -> str:
        line = "".join(self._open)
        if not line.isprintable():
            line = _CONTROL.sub("", _TERMINAL_CODES.sub("", line))
        if self._size > self._longest:
            line += f"... ({self._size - self._longest} more characters)"
        self._open, self._size, self._returned = [], 0, False
        return line


class LogTail:
    """The last lines of one replica, for messages and summaries.

    Args:
        size: bytes of UTF-8 that are kept.
    """

    def __init__(self, size: int = TAIL_BYTES) -> None:
        self._size = size
        self._lines: deque[str] = deque()
        self._bytes = 0

    def add(self, line: str) -> None:
        """Add a line, and drop the oldest ones that no longer fit."""
        self._lines.append(line)
        self._bytes += len(line.encode()) + 1
        while self._bytes > self._size and len(self._lines) > 1:
            self._bytes -= len(self._lines.popleft().encode()) + 1

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the lines, oldest first."""
        return tuple(self._lines)

    @property
    def text(self) -> str:
        """Return the lines as one text of at most `size` bytes."""
        data = "\n".join(self._lines).strip().encode()
        return data[-self._size :].decode("utf-8", "ignore")


def replica_log_path(root: Path, replica: str) -> Path:
    """Return the log file of a replica such as `worker-0` under the job's output folder."""
    return root / "logs" / "replicas" / f"{replica}.log"


LARGEST_LOG_FILE = 32 << 20
"""Bytes of a log's file, after which the next one begins."""


def log_files_of(path: Path) -> dict[int, Path]:
    """Return the files of a replica's log by number, oldest first; `path` is the first one."""
    later = dict[int, Path]()
    with suppress(OSError):  # before Python 3.13, of a folder that vanishes meanwhile
        for file in path.parent.glob(f"{path.stem}.*{path.suffix}"):
            number = file.stem.removeprefix(f"{path.stem}.")
            if re.fullmatch("[1-9][0-9]{0,8}", number):
                later[int(number)] = file
    return {1: path, **dict(sorted(later.items()))}


class ReplicaLog:
    """Appends lines to a log. A write error never stops the training, and the next line is tried again.

    `problem` describes why the last line isn't in the log; it is None otherwise.
    A log that gets long is in several files, of which the first one and the last two are kept.

    Args:
        path: the first file; its folder is created.
        header: a first line that separates this attempt from earlier ones.
        largest: see `LARGEST_LOG_FILE`.
    """

    def __init__(self, path: Path, header: str, largest: int = LARGEST_LOG_FILE) -> None:
        self.path = path
        self.problem: str | None = None
        self._first, self._largest = path, largest
        self._number = self._size = 0
        self._file: BinaryIO | None = None
        self._is_closed = False
        self.write([header])

    def write(self, lines: Iterable[str]) -> None:
        """Append lines."""
        if self._is_closed:
            return
        try:
            if self._file is None:
                self._first.parent.mkdir(parents=True, exist_ok=True)
                self._open(*max(log_files_of(self._first).items()))
            if self._size >= self._largest:
                self._open_next()
            self._append(lines)
            self.problem = None
        except OSError as error:
            lost = f"the log file {self.path} can't be written ({error.strerror})"
            self.problem = f"{lost}: its lines are only shown here"
            self._end_file()

    def close(self) -> None:
        """Close the file; more calls do nothing."""
        self._is_closed = True
        self._end_file()

    def _end_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def _open(self, number: int, path: Path) -> None:
        self._number, self.path = number, path
        self._file = os.fdopen(os.open(path, APPENDING, 0o666), "ab")
        self._size = os.fstat(self._file.fileno()).st_size

    def _append(self, lines: Iterable[str]) -> None:
        if self._file is not None:
            data = "".join(f"{line}\n" for line in lines).encode(errors="replace")
            self._size += len(data)
            self._file.write(data)
            self._file.flush()  # its readers follow it

    def _open_next(self) -> None:
        before, number = self.path, self._number + 1
        path = self._first.with_suffix(f".{number}{self._first.suffix}")
        self._append([f"--- this log continues in {path.name} ---"])
        self._end_file()
        self._open(number, path)
        left_out = ""
        if number > 3:
            size = (number - 3) * self._largest / (1 << 20)
            left_out = f"; {size:g} MiB between {self._first.name} and {before.name} are left out"
        self._append([f"--- this log continues from {before.name}{left_out} ---"])
        for old in list(log_files_of(self._first).values())[1:-2]:
            old.unlink(missing_ok=True)


_SHIM = Path(__file__).with_name("shim.py")

# All processes that could hold the log open have been killed by then, except on systems without subreapers.
_LAST_LINES_SECONDS = 2.0

# A replica that prints without end must not delay other tasks or Ctrl-C: so much is read at a time. The pipe
# buffers the rest, and a full pipe blocks the replica.
_CHUNK = 4096


@dataclass(frozen=True)
class ProcessExit:
    """How a replica ended.

    Attributes:
        code: 0 to 255; 128+n for a death by signal n.
        signal: that signal, or None.
        time: when it ended.
    """

    code: int
    signal: int | None
    time: datetime


class ReplicaProcess:
    """A replica that runs below its own launcher, which ends with the replica and with this process.

    Args:
        launch: what to start.
        on_lines: receives the lines that it prints, many at a time. Must not raise.
        held: descriptors that the launcher keeps open until everything below it has ended.
        namespaces: descriptors of the namespaces that it enters first.
        group: the folder of the control group that it enters first.

    Raises:
        OSError: the launcher could not be started.
        ValueError: the command or the environment holds text that no program accepts, such as a NUL.
    """

    def __init__(
        self,
        launch: Launch,
        on_lines: Callable[[list[str]], None],
        held: Iterable[int] = (),
        namespaces: Iterable[int] = (),
        group: Path | None = None,
    ) -> None:
        control, self._control = os.pipe()
        status_reader, status = os.pipe()
        log_reader, log = os.pipe()
        shim = [sys.executable, "-I", "-S", str(_SHIM), str(PACKAGE.parent)]
        inherited = (control, status, *namespaces, *held)
        entered = ",".join(map(str, namespaces)) or "-"
        options = map(str, (control, status, launch.grace_seconds, entered, group or "-", *held))
        try:
            # In its own session: Ctrl-C in the terminal reaches only this process, which ends the replicas.
            self._shim = subprocess.Popen(
                [*shim, *options, "--", *launch.argv],
                cwd=launch.cwd,
                env=dict(launch.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=inherited,
                start_new_session=True,
            )
        except (OSError, ValueError):
            for fd in (self._control, status_reader, log_reader):
                os.close(fd)
            raise
        finally:
            for fd in (control, status, log):
                os.close(fd)
        lines = asyncio.ensure_future(_read_lines(log_reader, on_lines))
        self._exit = asyncio.ensure_future(self._follow(status_reader, lines))

    async def wait(self) -> ProcessExit:
        """Return its exit once all its processes have ended; cancelling this call does not end it."""
        return await asyncio.shield(self._exit)

    def terminate(self, grace_seconds: float) -> None:
        """Ask it to end, and kill it after `grace_seconds`, 0 for at once; the earliest deadline counts."""
        if self._control >= 0:
            with suppress(BrokenPipeError):  # it has just ended
                os.write(self._control, f"TERM {grace_seconds}\n".encode())

    async def _follow(self, status: int, lines: asyncio.Future[None]) -> ProcessExit:
        group: int | None = None
        end: ProcessExit | None = None
        async with _open_reader(status) as reader:
            while line := await reader.readline():
                report: dict[str, Any] = json.loads(line)
                group = report.get("pid", group)
                if "exitCode" in report:
                    time = datetime.fromtimestamp(report["time"], UTC)
                    end = ProcessExit(report["exitCode"], report["signal"], time)
        self._shim.wait()
        os.close(self._control)
        self._control = -1
        if end is None and group is not None:
            # The launcher was killed, and with it the replica's first process; this is the rest of its group.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_LINES_SECONDS):
                await lines
        return end or ProcessExit(128 + signal.SIGKILL, signal.SIGKILL, datetime.now(UTC))


async def _read_lines(log: int, on_lines: Callable[[list[str]], None]) -> None:
    splitter = TextLines()
    async with _open_reader(log) as reader:
        try:
            while data := await reader.read(_CHUNK):
                on_lines(splitter.feed(data))
                await asyncio.sleep(0)
        finally:
            on_lines(splitter.end())


@asynccontextmanager
async def _open_reader(fd: int) -> AsyncIterator[asyncio.StreamReader]:
    reader = asyncio.StreamReader(limit=_CHUNK)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb", buffering=0)
    )
    try:
        yield reader
    finally:
        transport.close()
