"""The child's progress file, looked at a few times a second: it is replaced as a whole (docs/contract.md)."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainjob_trainer.atomic_file import temporary_of

_MAX_BYTES = 1 << 20


def has_stepped(report: Mapping[str, Any], first_step: Any) -> bool:
    """Tell whether a process has taken a step itself.

    Args:
        report: its latest, as docs/contract.md has it.
        first_step: that it told of first, which an earlier process may have taken.
    """
    return "stepSeconds" in report or report.get("step") != first_step


class ProgressWatch:
    """The latest whole report, and when it came."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Watch `path`; the clock is replaced by tests."""
        self._path = path
        self._clock = clock
        self._seen: tuple[int, ...] | None = None
        self._replaced_at: float | None = None
        self._first_step: Any = None
        self.report: Mapping[str, Any] | None = None

    @property
    def has_stepped(self) -> bool:
        """Whether the process has taken a step itself."""
        return has_stepped(self.report or {}, self._first_step)

    @property
    def age(self) -> float | None:
        """Seconds since the file was last replaced; None before the first time."""
        return None if self._replaced_at is None else self._clock() - self._replaced_at

    def begin(self) -> None:
        """Forget, and remove, what an earlier process has left."""
        for path in (self._path, temporary_of(self._path)):
            with contextlib.suppress(OSError):
                path.unlink()
        self.report, self._replaced_at, self._first_step = None, None, None
        self._seen = self._version()  # it could not be removed: not this process's either

    def look(self) -> bool:
        """Look at the file; tell whether there is another report than before."""
        version = self._version()
        if version is None or version == self._seen:
            return False
        self._seen = version
        self._replaced_at = self._clock()
        report = self._read()
        if report is None or report == self.report:
            return False
        self.report = report
        if self._first_step is None:
            self._first_step = report.get("step")
        return True

    def _version(self) -> tuple[int, ...] | None:
        try:
            stat = os.stat(self._path)  # noqa: PTH116 - four times a second for days
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def _read(self) -> Mapping[str, Any] | None:
        try:
            with self._path.open("rb") as file:
                report = json.loads(file.read(_MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return None
        return report if isinstance(report, dict) and isinstance(report.get("state"), str) else None
