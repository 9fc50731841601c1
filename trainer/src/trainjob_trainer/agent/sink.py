"""A descriptor that may block, written to by a thread of its own: nobody else waits for it."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Callable

_LIMIT = 1 << 20


class Sink:
    """Bytes on their way to a descriptor, in order and without delay."""

    def __init__(self, descriptor: int = 1, limit: int = _LIMIT) -> None:
        """Write to `descriptor`; more than `limit` bytes waiting is full."""
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
