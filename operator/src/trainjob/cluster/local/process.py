"""One running replica: its launcher, what it prints, and how it ended."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from trainjob.cluster.local.launch import Launch
from trainjob.cluster.local.log_reader import LogReader

_SHIM = Path(__file__).with_name("shim.py")

# Whatever could still hold the log open has been killed by then; on a system without subreapers it may not.
_LAST_WORDS_SECONDS = 2.0


@dataclass(frozen=True)
class Exit:
    """How a replica ended.

    Attributes:
        code: 0 to 255; 128+n for a death by signal n.
        signal: that signal, or None.
        time: when.
    """

    code: int
    signal: int | None
    time: datetime


class ReplicaProcess:
    """A replica that runs below a launcher of its own, which ends with it and with us.

    Args:
        launch: what to start.
        on_line: gets every line that it prints.
        held: descriptors that the launcher keeps open until everything below it has ended.

    Raises:
        OSError: the launcher could not be started.
        ValueError: the command or the environment holds what no program can get, such as a NUL character.
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
            # A session of its own: Ctrl-C in the terminal is ours to hear, and replicas are told in our way.
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

    async def wait(self) -> Exit:
        """Return how it ended, once nothing of it is left; cancelling this does not end it."""
        return await asyncio.shield(self._exit)

    def terminate(self, grace_seconds: float) -> None:
        """Ask it to end, and have it killed after `grace_seconds`; the earliest deadline counts."""
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

    async def _follow(self) -> Exit:
        reported = await self._read_reports()
        self._shim.wait()
        os.close(self._control)
        self._control = -1
        if reported is None and self._pid is not None:
            _kill_group(self._pid)
        await self._reader.wait_ended(_LAST_WORDS_SECONDS)
        return reported or Exit(128 + signal.SIGKILL, signal.SIGKILL, datetime.now(UTC))

    async def _read_reports(self) -> Exit | None:
        found: Exit | None = None
        reader, transport = await _open_reader(self._status)
        try:
            while line := await reader.readline():
                report: dict[str, Any] = json.loads(line)
                self._pid = report.get("pid", self._pid)
                if "exitCode" in report:
                    time = datetime.fromtimestamp(report["time"], UTC)
                    found = Exit(report["exitCode"], report["signal"], time)
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
    """End what is left of a replica whose launcher was itself killed; its leader died with the launcher."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
