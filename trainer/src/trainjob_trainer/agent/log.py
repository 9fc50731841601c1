"""The log of a container: the agent's own lines and the output of the training process."""

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

# The agent's own lines.


def log(text: str) -> None:
    """Print one line on stderr."""
    print(f"trainjob: agent: {text}", file=sys.stderr, flush=True)


class Seldom:
    """Prints at most one line in `seconds`, the first at once."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._next = clock()

    def log(self, text: str) -> None:
        """Print the line, or drop it."""
        if self._clock() >= self._next:
            self._next = self._clock() + self._seconds
            log(text)


# A descriptor that may block: only a thread of its own waits for it.


_LIMIT = 1 << 20


class Sink:
    """A queue of bytes to a descriptor, written in order and at once; above `limit` bytes it is full."""

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
        """Return whether writers should wait."""
        return self._pending > self._limit

    def put(self, data: bytes) -> None:
        """Queue the data; never blocks."""
        with self._changed:
            self._chunks.append(data)
            self._pending += len(data)
            self._changed.notify_all()
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="trainjob-output", daemon=True)
            self._thread.start()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call back once half of the limit is free: at once, or later from the thread."""
        with self._changed:
            if self._pending > self._limit // 2:
                self._waiting.append(callback)
                return
        callback()

    def drain(self, seconds: float) -> bool:
        """Wait until all is written, at most `seconds`; return whether it is."""
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
            except BlockingIOError:  # another process that shares the descriptor made it non-blocking
                select.select([], [self._descriptor], [], 1.0)
            except OSError:  # the reader has ended or the disk is full: training continues without a log
                return


# The copy of a process's output to the agent's own stdout.
#
# Bytes are copied at once and unchanged. If the reader stops, a bounded buffer fills; then the process blocks
# in its write, as with any pipe, and the agent never does.


TAIL_CHARACTERS = 2048

_CHUNK = 65536
_RECENT_BYTES = 16 * TAIL_CHARACTERS
"""Enough for the hundred frames of a thread that faulthandler prints."""

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[^\[]")
_UNPRINTABLE = re.compile(r"[^\n\t\x20-\x7e\xa0-\U0010ffff]")


class LogCopy:
    """The output of one process: a pipe, its last lines, and a sink; without a sink, the rest is dropped."""

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
        """Return the last characters, as a terminal would show them."""
        return self.recent[-TAIL_CHARACTERS:]

    @property
    def recent(self) -> str:
        """Return more of the last characters, enough for requested stacks."""
        return readable(bytes(self._recent))

    def begin(self) -> None:
        """Start copying in the running loop."""
        self._loop = asyncio.get_running_loop()
        self._resume()

    def close_writer(self) -> None:
        """Close the writing end here, so that the pipe ends with the process."""
        os.close(self.writer)

    def show(self, sink: Sink) -> None:
        """Drop the output so far and copy the rest to `sink`."""
        self._take_all()
        self._recent.clear()
        self._sink = sink

    async def settle(self, seconds: float) -> None:
        """Wait for output and then for a short pause in it, at most `seconds`."""
        until = time.monotonic() + seconds
        before = latest = self.received
        while time.monotonic() < until:
            await asyncio.sleep(0.05)
            if before != latest == self.received:
                return
            latest = self.received

    def finish(self) -> None:
        """Read the rest of the pipe, even if the sink is full; the process has ended."""
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
        """Read what is available: b"" at the end, None if there is nothing yet."""
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
    """Return output as a terminal shows it: no colours, and the last version of overwritten lines."""
    lines = _ESCAPES.sub("", data.decode("utf-8", "replace")).split("\n")
    return _UNPRINTABLE.sub("", "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines))


def _call_soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has been closed
        loop.call_soon_threadsafe(callback)
