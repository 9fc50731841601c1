"""The warm standby: the next interpreter, with TensorFlow imported, waits to become the training process.

It has the command of the training process and one more variable; with that, `bootstrap/sitecustomize.py`
waits before Python runs the user's script. So a standby starts only where that file is known to run: while a
training process with the same command has a handler for the stack signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from trainjob_trainer.agent.log import LogCopy, Sink, log
from trainjob_trainer.agent.process_tree import Reaper, answers_stack_requests
from trainjob_trainer.contract.processes import exit_code, send, spawn

VARIABLE = "TRAINJOB_STANDBY"

_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_NOT_ITS_OWN = ("TRAINJOB_PROGRESS_FILE", "TRAINJOB_TERMINATION_LOG")
_PATIENCE_SECONDS = 120.0
_MAX_LOSSES = 3


class Standby:
    """One waiting interpreter; the constructor starts it and needs a running loop.

    The constructor raises OSError if the system has no free process or descriptor. `ready` is true once all
    is imported; `wait_status` is None while the process lives.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], reaper: Reaper) -> None:
        self.ready = False
        self.wait_status: int | None = None
        self._born = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self.output = LogCopy()
        self._ours, theirs = socket.socketpair()
        variables = {name: value for name, value in env.items() if name not in _NOT_ITS_OWN}
        self.output.begin()
        try:
            self.pid = spawn(
                command, {**variables, VARIABLE: "1"}, stdin=theirs.fileno(), output=self.output.writer
            )
        finally:
            theirs.close()
            self.output.close_writer()
        self._ours.setblocking(False)
        self._loop.add_reader(self._ours, self._read_ready)
        self._reaper = reaper
        reaper.expect(self.pid, self._ended)

    @property
    def is_usable(self) -> bool:
        """Return whether it lives and is ready, or may still become ready."""
        return self.wait_status is None and (self.ready or time.monotonic() - self._born < _PATIENCE_SECONDS)

    def activate(
        self, env: Mapping[str, str], sink: Sink, ended: Callable[[int], None]
    ) -> tuple[int, LogCopy]:
        """Make it the training process; its output is copied from now on."""
        self._reaper.expect(self.pid, ended)
        self._loop.remove_reader(self._ours)
        self.output.show(sink)
        line = json.dumps({"env": dict(env)}).encode("ascii") + b"\n"
        self._sending = self._loop.create_task(self._send(line))
        return self.pid, self.output

    def end(self) -> None:
        """Kill it; the reaper reports its end."""
        send(self.pid, signal.SIGKILL)

    async def _send(self, line: bytes) -> None:
        with self._ours, contextlib.suppress(OSError):  # it has ended, and the run reports that
            await self._loop.sock_sendall(self._ours, line)

    def _read_ready(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            if self._ours.recv(64):
                self.ready = True
                return
        self._loop.remove_reader(self._ours)

    def _ended(self, wait_status: int) -> None:
        self.wait_status = wait_status
        self._loop.remove_reader(self._ours)
        self._ours.close()
        self.output.finish()


class StandbyKeeper:
    """Starts a standby where it can work, and hands it over; calls `lost` if one ends by itself."""

    def __init__(
        self,
        command: Sequence[str],
        reaper: Reaper,
        *,
        wanted: bool,
        lost: Callable[[], None] = lambda: None,
    ) -> None:
        name = command[0].rpartition("/")[2] if command else ""
        self._wanted = wanted and sys.platform == "linux" and _PYTHON.fullmatch(name) is not None
        self._command = command
        self._reaper = reaper
        self._lost = lost
        self._current: Standby | None = None
        self._losses = 0

    @property
    def pids(self) -> set[int]:
        """Return the standby's process id, if there is one."""
        return {self._current.pid} if self._current is not None else set()

    @property
    def ready(self) -> bool:
        """Return whether a standby waits with everything imported."""
        return self._current is not None and self._current.is_usable and self._current.ready

    def consider(self, child: int, env: Mapping[str, str]) -> None:
        """Start a standby for the process `child`, if there is none; imports use a processor for seconds."""
        self._bury()
        if not self._wanted or self._current is not None:
            return
        if not answers_stack_requests(child):
            return
        try:
            self._current = Standby(self._command, env, self._reaper)
        except OSError as error:
            self._lose(f"the warm standby could not be started: {error}")

    def take(
        self, env: Mapping[str, str], sink: Sink, ended: Callable[[int], None]
    ) -> tuple[int, LogCopy] | None:
        """Turn the standby into the training process; None if none is usable: the start is cold."""
        self._reaper.reap()
        self._bury()
        if self._current is None:
            return None
        if not self._current.is_usable:
            self._current.end()
            return None
        taken, self._current = self._current, None
        return taken.activate(env, sink, ended)

    def close(self) -> None:
        """Kill the standby and start no other one."""
        self._wanted = False
        if self._current is not None:
            self._current.end()

    def _bury(self) -> None:
        gone = self._current
        if gone is None or gone.wait_status is None:
            return
        self._current = None
        if self._wanted:
            code, _ = exit_code(gone.wait_status)
            lines = [line.strip() for line in gone.output.tail.splitlines() if line.strip()]
            self._lose(f"the warm standby ended with exit code {code}: {lines[-1] if lines else 'no output'}")

    def _lose(self, message: str) -> None:
        self._losses += 1
        if self._losses >= _MAX_LOSSES:
            self._wanted = False
            message += "; no other one is started"
        log(message)
        self._lost()
