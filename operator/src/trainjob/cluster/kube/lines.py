"""Lines out of a stream of chunks: an object on one line may be longer than any buffer of the transport."""

from __future__ import annotations

from collections.abc import Iterator

LONGEST_LINE = 16 * 1024 * 1024
"""Bytes; etcd refuses objects of more than 1.5 MiB, which JSON may blow up some."""


class LineTooLong(ValueError):
    """No line's end within the limit: this is no watch."""


class LineSplitter:
    """Collects chunks until a line is whole; keeps at most one unfinished line."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines that this chunk completes, without their ends; empty ones are left out.

        Raises:
            LineTooLong: the unfinished line is over the limit.
        """
        first, *rest = chunk.split(b"\n")
        self._keep(first)
        for part in rest:
            line = b"".join(self._parts).strip()
            self._parts.clear()
            self._size = 0
            self._keep(part)
            if line:
                yield line

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._longest:
            raise LineTooLong(f"a line of more than {self._longest} bytes")
        if part:
            self._parts.append(part)
