"""The bytes that a process writes, as lines that a person can read."""

import codecs
import re
from collections import deque

LONGEST_LINE = 4096
"""Characters of one line that are kept."""

TAIL_BYTES = 3072
"""Of the last lines, what goes into a termination message (the kubelet keeps the last 4,096 bytes)."""

_TERMINAL_CODES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class LineSplitter:
    """Cuts a stream of bytes into lines: UTF-8 with mistakes replaced, colours and cursor moves taken out.

    A progress bar that redraws itself with carriage returns counts as one line: its last state.
    """

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._longest = longest
        self._open = ""
        self._cut = 0
        self._returned = False

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that `data` completes."""
        return self._take(self._decoder.decode(data))

    def end(self) -> list[str]:
        """Return what is left when the stream has ended, a last line without an end included."""
        lines = self._take(self._decoder.decode(b"", final=True))
        if self._open:
            lines.append(self._close())
        return lines

    def _take(self, text: str) -> list[str]:
        *complete, rest = text.split("\n")
        lines = []
        for part in complete:
            self._extend(part)
            lines.append(self._close())
        self._extend(rest)
        return lines

    def _extend(self, text: str) -> None:
        body = text.rstrip("\r")
        if not body:
            self._returned = self._returned or bool(text)
            return
        start = body.rfind("\r") + 1
        if self._returned or start:
            self._open, self._cut = "", 0
        # A carriage return at the very end may yet prove to be half of a "\r\n".
        self._returned = len(body) < len(text)
        merged = self._open + body[start:]
        self._cut += max(0, len(merged) - self._longest)
        self._open = merged[: self._longest]

    def _close(self) -> str:
        line = _CONTROL.sub("", _TERMINAL_CODES.sub("", self._open))
        if self._cut:
            line += f"... ({self._cut} more characters)"
        self._open, self._cut, self._returned = "", 0, False
        return line


class LogTail:
    """The last lines of one replica, for messages and summaries.

    Args:
        size: bytes of UTF-8 that are kept.
    """

    def __init__(self, size: int = TAIL_BYTES) -> None:
        self._size = size
        self._lines: deque[str] = deque()
        self._bytes = 0

    def add(self, line: str) -> None:
        """Take one more line and forget the oldest ones that no longer fit."""
        self._lines.append(line)
        self._bytes += _length(line)
        while self._bytes > self._size and len(self._lines) > 1:
            self._bytes -= _length(self._lines.popleft())

    @property
    def lines(self) -> tuple[str, ...]:
        """Return the lines, oldest first."""
        return tuple(self._lines)

    @property
    def text(self) -> str:
        """Return the lines as one text of at most `size` bytes."""
        data = "\n".join(self._lines).strip().encode()
        return data[-self._size :].decode("utf-8", "ignore")


def _length(line: str) -> int:
    return len(line.encode()) + 1
