"""What a replica prints, read a little at a time."""

import asyncio
import os
from collections.abc import Callable, Iterable

from trainjob.cluster.local.lines import LineSplitter
from trainjob.cluster.waiting import happens_within

# Small, so that a replica that prints without end keeps nobody waiting, Ctrl-C least of all; the pipe holds
# the rest, and a full pipe holds the replica.
_CHUNK = 4096


class LogReader:
    """Reads lines from a pipe within the running event loop, and closes it at its end.

    Args:
        fd: the pipe; it belongs to the reader from now on.
        on_line: gets each line. Must not raise.
    """

    def __init__(self, fd: int, on_line: Callable[[str], None]) -> None:
        self._fd = fd
        self._on_line = on_line
        self._splitter = LineSplitter()
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    async def wait_ended(self, seconds: float) -> None:
        """Return at the end of the pipe; close it if that does not come in time."""
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
