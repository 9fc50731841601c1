"""What `trainjob profile` asks of one replica, and what it is told: two small files in the output folder.

`profile/worker-0.json` is the request, `profile/worker-0.answer.json` what has come of it. The one who asks
writes the first and may take it back; the replica removes it when it is done, and replaces the second.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainjob_trainer.atomic_file import write_atomically

FOLDER = "profile"
_MOST_BYTES = 4096


@dataclass(frozen=True)
class Request:
    """Which steps.

    Attributes:
        id: tells it from other requests.
        first: the first step that is wanted, from 1.
        last: the last one.
    """

    id: str
    first: int
    last: int

    @classmethod
    def parse(cls, text: str, done: int) -> Request:
        """Read `{"id", "first", "last"}`, or `{"id", "count"}` of those that come when `done` are done.

        Raises:
            ValueError: it is something else.
        """
        raw = json.loads(text)
        if not isinstance(raw, dict) or not isinstance(raw.get("id"), str):
            raise ValueError("no object with an id")  # noqa: TRY004 - of the text, not of an argument
        if "count" in raw:
            return cls(raw["id"], done + 1, done + _number(raw["count"]))
        first, last = _number(raw.get("first")), _number(raw.get("last"))
        if last < first:
            raise ValueError("last is less than first")
        return cls(raw["id"], first, last)

    def begins(self, done: int, ahead: int) -> bool:
        """Whether the next call, of up to `ahead` steps, is to be recorded."""
        return done + ahead >= self.first

    def refusal(self, done: int, total: int | None) -> str | None:
        """Why these steps can't be had any more, or ever; None if they can."""
        if self.last <= done:
            return f"steps {self.first}-{self.last} are over: {done} steps are done"
        if total is not None and self.first > total:
            return f"training ends with step {total}"
        return None


class RequestFiles:
    """The two files of one replica. What can't be read or written is passed over."""

    def __init__(self, output: Path, replica: str) -> None:
        """Below the job's output folder, of a replica such as `worker-0`."""
        self._request = output / FOLDER / f"{replica}.json"
        self._answer = output / FOLDER / f"{replica}.answer.json"
        self._seen: tuple[int, ...] | None = None

    def has_changed(self) -> bool:
        """Look for another request than before, or none any more; one look at a file."""
        before, self._seen = self._seen, self._version()
        return self._seen != before

    def read(self) -> str | None:
        """Return the request as it stands; None without one."""
        try:
            with self._request.open(encoding="utf-8") as file:
                return file.read(_MOST_BYTES)
        except (OSError, ValueError):
            return None

    def answer(self, **facts: Any) -> None:
        """Replace the answer."""
        with contextlib.suppress(OSError):
            write_atomically(self._answer, json.dumps(facts))

    def remove(self) -> None:
        """The request has been dealt with; another one that has come meanwhile stays."""
        if self._version() == self._seen:
            with contextlib.suppress(OSError):
                self._request.unlink()
            self._seen = self._version()  # of one that can't be removed: it isn't taken for a new one

    def _version(self) -> tuple[int, ...] | None:
        try:
            stat = os.stat(self._request)  # noqa: PTH116 - twice a second for days
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size


def id_of(text: str) -> str:
    """The id of a request, as far as it can be told."""
    try:
        raw: Any = json.loads(text)
    except ValueError:
        return ""
    return str(raw.get("id", "")) if isinstance(raw, Mapping) else ""


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a step is a number from 1")
    return value
