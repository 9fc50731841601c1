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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from trainjob.cluster.local.launch import Launch
from trainjob.cluster.protocol import happens_within

# The output of a process as readable lines.


LONGEST_LINE = 4096
"""Characters of one line that are kept."""

TAIL_BYTES = 3072
"""Bytes of the last lines in a termination message (the kubelet keeps the last 4,096 bytes)."""

_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class TextLines:
    """Splits a stream of bytes into lines; replaces invalid UTF-8, and removes colours and cursor moves.

    A progress bar that redraws itself with carriage returns counts as one line: its last state.
    """

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._longest = longest
        self._open = ""
        self._cut = 0
        self._returned = False

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes."""
        return self._take(self._decoder.decode(data))

    def end(self) -> list[str]:
        """Return the rest when the stream has ended, including a last line without a line end."""
        lines = self._take(self._decoder.decode(b"", final=True))
        if self._open:
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
            self._open, self._cut = "", 0
        # A carriage return at the end may be the first half of a "\r\n".
        self._returned = len(body) < len(text)
        merged = self._open + body[start:]
        self._cut += max(0, len(merged) - self._longest)
        self._open = merged[: self._longest]

    def _close(self) -> str:
        line = _CONTROL.sub("", _TERMINAL_CODES.sub("", self._open))
        if self._cut:
            line += f"... ({self._cut} more characters)"
        self._open, self._cut, self._returned = "", 0, False
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
        self._bytes += _length(line)
        while self._bytes > self._size and len(self._lines) > 1:
            self._bytes -= _length(self._lines.popleft())

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the lines, oldest first."""
        return tuple(self._lines)

    @property
    def text(self) -> str:
        """Return the lines as one text of at most `size` bytes."""
        data = "\n".join(self._lines).strip().encode()
        return data[-self._size :].decode("utf-8", "ignore")


def _length(line: str) -> int:
    return len(line.encode()) + 1


# The reader of a replica's output.


# Small, so that a replica that prints without end does not delay other tasks or Ctrl-C. The pipe buffers
# the rest, and a full pipe blocks the replica.
_CHUNK = 4096


class LogReader:
    """Reads lines from a pipe within the running event loop, and closes it at its end.

    Args:
        fd: the pipe, which the reader owns from now on.
        on_line: receives each line. Must not raise.
    """

    def __init__(self, fd: int, on_line: Callable[[str], None]) -> None:
        self._fd = fd
        self._on_line = on_line
        self._splitter = TextLines()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    async def wait_ended(self, seconds: float) -> None:
        """Wait for the end of the pipe; close it if that does not come in time."""
        if not await happens_within(self._ended, seconds):
            self._end()

    def _read(self) -> None:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return
        if data:
            self._pass_on(self._splitter.feed(data))
        else:
            self._end()

    def _end(self) -> None:
        if not self._ended.is_set():
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._pass_on(self._splitter.end())
            self._ended.set()

    def _pass_on(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._on_line(line)


# The log file of each replica in the job's output folder.


def replica_log_path(root: Path, replica: str) -> Path:
    """Return the log file of a replica such as `worker-0` under the job's output folder."""
    return root / "logs" / "replicas" / f"{replica}.log"


class ReplicaLog:
    """Appends lines to a file. A write error never stops the training: `problem` describes it.

    Args:
        path: the file; its folder is created.
        header: a first line that separates this attempt from earlier ones.
    """

    def __init__(self, path: Path, header: str) -> None:
        self.path = path
        self.problem: str | None = None
        self._file: TextIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8", errors="replace", buffering=1)
        except OSError as error:
            self._give_up(error)
        self.write(header)

    def write(self, line: str) -> None:
        """Append one line."""
        if self._file is None:
            return
        try:
            self._file.write(line + "\n")
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Close the file; more calls do nothing."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self.problem = self.problem or self._sentence(error)

    def _give_up(self, error: OSError) -> None:
        self.problem = self._sentence(error)
        self.close()

    def _sentence(self, error: OSError) -> str:
        return f"the log file {self.path} can't be written ({error.strerror}): its lines are only shown here"


_SHIM = Path(__file__).with_name("shim.py")

# All processes that could hold the log open have been killed by then, except on systems without subreapers.
_LAST_WORDS_SECONDS = 2.0


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
        on_line: receives every line that it prints.
        held: descriptors that the launcher keeps open until everything below it has ended.

    Raises:
        OSError: the launcher could not be started.
        ValueError: the command or the environment holds text that no program accepts, such as a NUL.
    """

    def __init__(self, launch: Launch, on_line: Callable[[str], None], held: Iterable[int] = ()) -> None:
        self._pid: int | None = None
        control, self._control = os.pipe()
        self._status, status = os.pipe()
        self._log, log = os.pipe()
        keep = [str(fd) for fd in held]
        shim = [
            sys.executable,
            "-I",
            "-S",
            str(_SHIM),
            str(control),
            str(status),
            str(launch.grace_seconds),
            *keep,
        ]
        try:
            # In its own session: Ctrl-C in the terminal reaches only this process, which ends the replicas.
            self._shim = subprocess.Popen(
                [*shim, "--", *launch.argv],
                cwd=launch.cwd,
                env=dict(launch.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(control, status, *map(int, keep)),
                start_new_session=True,
            )
        except (OSError, ValueError):
            for fd in (self._control, self._status, self._log):
                os.close(fd)
            raise
        finally:
            for fd in (control, status, log):
                os.close(fd)
        self._reader = LogReader(self._log, on_line)
        self._exit = asyncio.ensure_future(self._follow())

    async def wait(self) -> ProcessExit:
        """Return its exit once all its processes have ended; cancelling this call does not end it."""
        return await asyncio.shield(self._exit)

    def terminate(self, grace_seconds: float) -> None:
        """Ask it to end, and kill it after `grace_seconds`; the earliest deadline counts."""
        self._order(f"TERM {grace_seconds}\n" if grace_seconds > 0 else "KILL\n")

    def kill(self) -> None:
        """Kill it and everything that it started."""
        self._order("KILL\n")

    def _order(self, line: str) -> None:
        if self._control >= 0:
            try:
                os.write(self._control, line.encode())
            except BrokenPipeError:
                return  # it has just ended

    async def _follow(self) -> ProcessExit:
        reported = await self._read_reports()
        self._shim.wait()
        os.close(self._control)
        self._control = -1
        if reported is None and self._pid is not None:
            _kill_group(self._pid)
        await self._reader.wait_ended(_LAST_WORDS_SECONDS)
        return reported or ProcessExit(128 + signal.SIGKILL, signal.SIGKILL, datetime.now(UTC))

    async def _read_reports(self) -> ProcessExit | None:
        found: ProcessExit | None = None
        reader, transport = await _open_reader(self._status)
        try:
            while line := await reader.readline():
                report: dict[str, Any] = json.loads(line)
                self._pid = report.get("pid", self._pid)
                if "exitCode" in report:
                    time = datetime.fromtimestamp(report["time"], UTC)
                    found = ProcessExit(report["exitCode"], report["signal"], time)
        finally:
            transport.close()
        return found


async def _open_reader(fd: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    reader = asyncio.StreamReader()
    file: BinaryIO = os.fdopen(fd, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), file
    )
    return reader, transport


def _kill_group(leader: int) -> None:
    """Kill the rest of a replica whose launcher was killed; the group's leader died with the launcher."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
