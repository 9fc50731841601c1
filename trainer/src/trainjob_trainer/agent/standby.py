"""The warm standby: the next interpreter, with TensorFlow imported, waits to become the training process.

It is the very command of the training process with one variable more, on which `bootstrap/sitecustomize.py`
waits before Python gets to the user's script. So it is started only where that file is known to run: while a
training process, started in the same way, shows its handler of the stack signal.
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

from trainjob_trainer.agent import process_tree
from trainjob_trainer.agent.log import LogCopy, Sink, log
from trainjob_trainer.agent.process_tree import answers_stack_requests, spawn

VARIABLE = "TRAINJOB_STANDBY"

_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_NOT_ITS_OWN = ("TRAINJOB_PROGRESS_FILE", "TRAINJOB_TERMINATION_LOG")
_PATIENCE_SECONDS = 120.0
_MAX_LOSSES = 3


class Standby:
    """One interpreter that waits, started when it is made, in a running loop.

    Making it raises OSError if the system has no process or descriptor to give. It is `ready` once it has
    imported everything; `wait_status` is None while it lives.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], reaper: process_tree.Reaper) -> None:
        self.ready = False
        self.wait_status: int | None = None
        self._born = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._log = LogCopy()
        self._ours, theirs = socket.socketpair()
        variables = {name: value for name, value in env.items() if name not in _NOT_ITS_OWN}
        self._log.begin()
        try:
            self.pid = spawn(
                command, {**variables, VARIABLE: "1"}, stdin=theirs.fileno(), output=self._log.writer
            )
        finally:
            theirs.close()
            self._log.close_writer()
        self._ours.setblocking(False)
        self._loop.add_reader(self._ours, self._hear)
        self._reaper = reaper
        reaper.expect(self.pid, self._ended)

    @property
    def is_usable(self) -> bool:
        """Whether it lives, and is on its way at least."""
        return self.wait_status is None and (self.ready or time.monotonic() - self._born < _PATIENCE_SECONDS)

    @property
    def last_line(self) -> str:
        """The last thing that it said."""
        lines = [line for line in self._log.tail.splitlines() if line.strip()]
        return lines[-1].strip() if lines else ""

    def activate(
        self, env: Mapping[str, str], sink: Sink, ended: Callable[[int], None]
    ) -> tuple[int, LogCopy]:
        """Let it become the training process; from now on its output counts."""
        self._reaper.expect(self.pid, ended)
        self._loop.remove_reader(self._ours)
        self._log.show(sink)
        order = json.dumps({"env": dict(env)}).encode("ascii") + b"\n"
        self._order = self._loop.create_task(self._send(order))
        return self.pid, self._log

    def end(self) -> None:
        """Kill it; its end comes through the reaper."""
        process_tree.send(self.pid, signal.SIGKILL)

    async def _send(self, order: bytes) -> None:
        with self._ours, contextlib.suppress(OSError):  # it has ended, and the run will say so
            await self._loop.sock_sendall(self._ours, order)

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            if self._ours.recv(64):
                self.ready = True
                return
        self._loop.remove_reader(self._ours)

    def _ended(self, wait_status: int) -> None:
        self.wait_status = wait_status
        self._loop.remove_reader(self._ours)
        self._ours.close()
        self._log.finish()


class StandbyKeeper:
    """Has a standby ready where that makes sense, and hands it over; calls `lost` if one ends by itself."""

    def __init__(
        self,
        command: Sequence[str],
        reaper: process_tree.Reaper,
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
        """The standby's process, if there is one."""
        return {self._current.pid} if self._current is not None else set()

    @property
    def ready(self) -> bool:
        """Whether one waits with everything imported."""
        return self._current is not None and self._current.is_usable and self._current.ready

    def consider(self, child: int, env: Mapping[str, str]) -> None:
        """Start one as process `child` was, if there is none; imports take a processor for some seconds."""
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
        """Turn the standby into the training process; None if there is none, and one is to start cold."""
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
        """Kill the standby; no other one is started."""
        self._wanted = False
        if self._current is not None:
            self._current.end()

    def _bury(self) -> None:
        gone = self._current
        if gone is None or gone.wait_status is None:
            return
        self._current = None
        if self._wanted:
            code, _ = process_tree.exit_code(gone.wait_status)
            self._lose(f"the warm standby ended with exit code {code}: {gone.last_line or 'no output'}")

    def _lose(self, message: str) -> None:
        self._losses += 1
        if self._losses >= _MAX_LOSSES:
            self._wanted = False
            message += "; no other one is started"
        log(message)
        self._lost()
