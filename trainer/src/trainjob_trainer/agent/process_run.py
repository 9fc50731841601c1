"""One start of the training process, until nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

from trainjob_trainer.agent import process_tree
from trainjob_trainer.agent.log import log
from trainjob_trainer.agent.log_copy import LogCopy
from trainjob_trainer.agent.spawning import NOT_EXECUTABLE, can_listen

_KILL_SECONDS = 0.02
_PORT_SECONDS = 10.0
_PORT_LOOK_SECONDS = 0.05
_COMPLAIN_SECONDS = 5.0

Launch = Callable[[Callable[[int], None]], "tuple[int, LogCopy]"]
"""Starts the process; calls back with its wait status when it has ended. Returns its id and its output."""


class ProcessRun:
    """A training process with all its descendants.

    Attributes:
        pid: its process id, 0 before it has started.
        log: its output, None before it has started.
    """

    def __init__(self, launch: Launch, *, port: int | None, spared: Callable[[], set[int]]) -> None:
        """Not started yet; needs a running loop.

        Args:
            launch: starts it.
            port: the TCP port that it will listen on; its start waits until nobody else does.
            spared: children of the agent that are none of it.
        """
        self.pid = 0
        self.log: LogCopy | None = None
        self._launch = launch
        self._port = port
        self._spared = spared
        self._status: int | None = None
        self._asked_to_end = False
        self._kill_at: float | None = None
        self._wake = asyncio.Event()

    @property
    def is_alive(self) -> bool:
        """Whether the main process has started and not ended."""
        return self.pid != 0 and self._status is None

    async def last(self) -> tuple[int, int | None]:
        """Start it, and wait until nothing of it is left.

        Returns:
            Its exit code, 128+n for signal n, and that signal.
        """
        if not await self._wait_for_port():
            number = int(signal.SIGTERM if self._asked_to_end else signal.SIGKILL)
            return 128 + number, number
        try:
            self.pid, self.log = self._launch(self._ended)
        except OSError as error:  # the system has no process or descriptor to give
            log(f"can't start the training process: {error}")
            return NOT_EXECUTABLE, None
        while self._status is None:
            await self._wait()
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill()
                self._kill_at = time.monotonic() + _KILL_SECONDS
        await self._end_descendants()
        if self.log is not None:
            self.log.finish()
        return process_tree.exit_code(self._status)

    def end(self, grace: float) -> None:
        """Have it end: SIGTERM to the main process now, SIGKILL to all after `grace` seconds."""
        if grace > 0 and not self._asked_to_end and self.is_alive:
            process_tree.send(self.pid, signal.SIGTERM)
        self._asked_to_end = self._asked_to_end or grace > 0
        latest = time.monotonic() + max(0.0, grace)
        self._kill_at = latest if self._kill_at is None else min(self._kill_at, latest)
        self._wake.set()

    def _ended(self, wait_status: int) -> None:
        self._status = wait_status
        self._wake.set()

    async def _wait_for_port(self) -> bool:
        """Wait until the port is free, or for so long; tell whether to start."""
        until = time.monotonic() + _PORT_SECONDS
        while self._kill_at is None:
            if self._port is None or can_listen(self._port) or time.monotonic() >= until:
                return True
            await asyncio.sleep(_PORT_LOOK_SECONDS)
        return False

    async def _wait(self) -> None:
        timeout = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
        try:
            await asyncio.wait_for(self._wake.wait(), timeout)
        except asyncio.TimeoutError:
            return
        self._wake.clear()

    async def _end_descendants(self) -> None:
        """Kill them until none is left; a start beside one of them would meet its files and ports."""
        complain_at = time.monotonic() + _COMPLAIN_SECONDS
        while True:
            left = self._kill()
            if not left:
                return
            if time.monotonic() >= complain_at:
                log(f"waiting for processes to end that SIGKILL does not end yet: {sorted(left)}")
                complain_at = time.monotonic() + 60
            await asyncio.sleep(_KILL_SECONDS)

    def _kill(self) -> set[int]:
        groups = (self.pid,) if self._status is None else ()
        try:
            return process_tree.kill_tree(os.getpid(), without=self._spared(), groups=groups)
        except OSError:  # no descriptor for a look into /proc: there may be some
            return {self.pid}
