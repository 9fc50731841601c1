"""The log of a container: the agent's own few lines, and what the training process prints."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable

# The agent's own few lines among those of the training process.


def log(text: str) -> None:
    """Print one line on stderr."""
    print(f"trainjob: agent: {text}", file=sys.stderr, flush=True)


class Seldom:
    """Prints at most one line in so many seconds, the first at once."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._next = clock()

    def log(self, text: str) -> None:
        """Print the line, or drop it."""
        if self._clock() >= self._next:
            self._next = self._clock() + self._seconds
            log(text)


# A descriptor that may block, written to by a thread of its own: nobody else waits for it.


_LIMIT = 1 << 20


class Sink:
    """Bytes on their way to a descriptor, in order and without delay; more than `limit` waiting is full."""

    def __init__(self, descriptor: int = 1, limit: int = _LIMIT) -> None:
        self._descriptor = descriptor
        self._limit = limit
        self._chunks: deque[bytes] = deque()
        self._pending = 0
        self._waiting: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @property
    def is_full(self) -> bool:
        """Whether whoever writes had better wait."""
        return self._pending > self._limit

    def put(self, data: bytes) -> None:
        """Write soon; never blocks."""
        with self._changed:
            self._chunks.append(data)
            self._pending += len(data)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="trainjob-output", daemon=True)
            self._thread.start()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back, from the thread, once half of the limit is free; at once if it is."""
        with self._changed:
            if self._pending > self._limit // 2:
                self._waiting.append(callback)
                return
        callback()

    def drain(self, seconds: float) -> bool:
        """Wait until everything is written; tell whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: self._pending == 0, seconds)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._chunks))
                data = self._chunks.popleft()
            self._write(data)
            with self._changed:
                self._pending -= len(data)
                room = self._pending <= self._limit // 2
                callbacks, self._waiting = (self._waiting, []) if room else ([], self._waiting)
                self._changed.notify_all()
            for callback in callbacks:
                callback()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:  # whoever made it so shares the descriptor with us
                select.select([], [self._descriptor], [], 1.0)
            except OSError:  # the reader has gone or the disk is full: training goes on without a log
                return


# What a process prints, on its way through the agent to the agent's own stdout.
#
# Everything goes on at once, byte by byte as it came. When nobody takes it any more, a bounded buffer fills
# and then the process waits in its write, as it would with a pipe of its own; the agent never does.


TAIL_CHARACTERS = 2048

_CHUNK = 65536
_RECENT_BYTES = 16 * TAIL_CHARACTERS
"""Enough for the hundred frames that faulthandler prints of a thread."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[^\[]")
_UNPRINTABLE = re.compile(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]")


class LogCopy:
    """The output of one process: a pipe, its last lines, and a sink; until it has one, the rest is lost."""

    def __init__(self, sink: Sink | None = None) -> None:
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
        if self._take() == b"" and self._loop is not None:
            self._loop.remove_reader(self._reader)
        elif self._sink is not None and self._sink.is_full and self._loop is not None:
            self._loop.remove_reader(self._reader)
            loop = self._loop
            self._sink.when_room(lambda: _call_soon(loop, self._resume))

    def _resume(self) -> None:
        if self._loop is not None:
            self._loop.add_reader(self._reader, self._copy)

    def _take(self) -> bytes | None:
        """Take what there is now: nothing is the end, and None that nothing has come since."""
        try:
            data = os.read(self._reader, _CHUNK)
        except BlockingIOError:
            return None
        self.received += len(data)
        self._recent += data
        del self._recent[:-_RECENT_BYTES]
        if data and self._sink is not None:
            self._sink.put(data)
        return data


def readable(data: bytes) -> str:
    """Output as a terminal would leave it: no colours, and of overwritten lines the last version."""
    lines = _ESCAPES.sub("", data.decode("utf-8", "replace")).split("\n")
    return _UNPRINTABLE.sub("", "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines))


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has been closed
        loop.call_soon_threadsafe(callback)
