"""The progress file that a training process replaces whole (its keys are in `docs/contract.md`)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainjob.core.reports import project_progress

LARGEST_REPORT = 1 << 16
"""Bytes; a report is a few hundred."""


class ProgressFile:
    """Reads the file again only when it has been replaced.

    Attributes:
        report: the latest whole report, or None. One that is taken away is forgotten: an agent does that
            when it starts the training process anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.report: Mapping[str, Any] | None = None
        self._seen: tuple[int, int] | None = None

    def has_changed(self) -> bool:
        """Look at the file, take over a new report, and tell whether there was one."""
        try:
            stat = self.path.stat()
            seen = (stat.st_ino, stat.st_mtime_ns)
            if seen == self._seen or stat.st_size > LARGEST_REPORT:
                return False
            self._seen = seen
            report = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return self._is_taken_away()
        except (OSError, ValueError, RecursionError):
            return False
        if not isinstance(report, dict):
            return False
        self.report = project_progress(report)
        return True

    def _is_taken_away(self) -> bool:
        # With its folder gone the pod is gone, and what it said last stays.
        if self.report is None or not self.path.parent.exists():
            return False
        self.report = self._seen = None
        return True

    @property
    def error_message(self) -> str | None:
        """Return what the process said of its own failure, or None."""
        error = (self.report or {}).get("error")
        message = error.get("message") if isinstance(error, dict) else None
        return message if isinstance(message, str) and message else None
