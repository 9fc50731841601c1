"""What a process prints, on its way through the agent to the agent's own stdout.

Everything goes on at once, byte by byte as it came. When nobody takes it any more, a bounded buffer fills and
then the process waits in its write, as it would with a pipe of its own; the agent never does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import time
from collections.abc import Callable

from trainjob_trainer.agent.sink import Sink

TAIL_CHARACTERS = 2048

_CHUNK = 65536
_RECENT_BYTES = 16 * TAIL_CHARACTERS
"""Enough for the hundred frames that faulthandler prints of a thread."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[^\[]")
_UNPRINTABLE = re.compile(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]")


class LogCopy:
    """The output of one process: a pipe, its last lines, and where the rest of it goes."""

    def __init__(self, sink: Sink | None = None) -> None:
        """Open the pipe; without a sink the output is dropped until there is one."""
        self._sink = sink
        self._reader, self.writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._recent = bytearray()
        self.received = 0
        """Bytes so far."""

    @property
    def tail(self) -> str:
        """The last characters, without what a terminal would not show."""
        return self.recent[-TAIL_CHARACTERS:]

    @property
    def recent(self) -> str:
        """The same of a few more of them, with the stacks that were just asked for."""
        return readable(bytes(self._recent))

    def begin(self) -> None:
        """Copy from now on, in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._resume()

    def close_writer(self) -> None:
        """Leave the writing end to the process, or the pipe would not end with it."""
        os.close(self.writer)

    def show(self, sink: Sink) -> None:
        """Forget what has come so far, and copy what comes."""
        self._take_all()
        self._recent.clear()
        self._sink = sink

    async def settle(self, seconds: float) -> None:
        """Wait until something has come and then a moment nothing more, at most so long."""
        until = time.monotonic() + seconds
        before = latest = self.received
        while time.monotonic() < until:
            await asyncio.sleep(0.05)
            if before != latest == self.received:
                return
            latest = self.received

    def finish(self) -> None:
        """Take what is left in the pipe, full or not; the process has ended."""
        if self._loop is not None:
            self._loop.remove_reader(self._reader)
            self._loop = None
            self._take_all()
            os.close(self._reader)

    def _take_all(self) -> None:
        while self._take():
            pass

    def _copy(self) -> None:
        if not self._take() and self._loop is not None:
            self._loop.remove_reader(self._reader)
        elif self._sink is not None and self._sink.is_full and self._loop is not None:
            self._loop.remove_reader(self._reader)
            loop = self._loop
            self._sink.when_room(lambda: _call_soon(loop, self._resume))

    def _resume(self) -> None:
        if self._loop is not None:
            self._loop.add_reader(self._reader, self._copy)

    def _take(self) -> bool:
        """Take what there is now; tell whether there was something."""
        try:
            data = os.read(self._reader, _CHUNK)
        except BlockingIOError:
            return False
        self.received += len(data)
        self._recent += data
        del self._recent[:-_RECENT_BYTES]
        if data and self._sink is not None:
            self._sink.put(data)
        return bool(data)


def readable(data: bytes) -> str:
    """Output as a terminal would leave it: no colours, and of overwritten lines the last version."""
    lines = _ESCAPES.sub("", data.decode("utf-8", "replace")).split("\n")
    return _UNPRINTABLE.sub("", "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines))


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has been closed
        loop.call_soon_threadsafe(callback)
