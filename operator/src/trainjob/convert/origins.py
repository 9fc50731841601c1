"""From a field of the TrainJob back to the field of the TFJob that it comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainjob.api import FieldError
from trainjob.api.paths import Step, format_path, value_at
from trainjob.convert.ledger import Path

_STEP = re.compile(r"\.?([^.\[\]]+)|\[([^\]]*)\]")


class Origins:
    """Which part of the TrainJob was made from which part of the TFJob."""

    def __init__(self, tfjob: Mapping[str, Any], trainjob: Mapping[str, Any]) -> None:
        self._tfjob = tfjob
        self._trainjob = trainjob
        self._known: dict[str, Path] = {"metadata": ("metadata",)}

    def add(self, made: Path, source: Path) -> None:
        """Say that the field `made` and all in it come from the field `source`."""
        self._known[format_path(made)] = source

    def trace(self, error: FieldError) -> FieldError:
        """Return the error by the TFJob's field, or as it is, where the field is the TrainJob's alone."""
        for made in sorted(self._known, key=len, reverse=True):
            rest = error.path.removeprefix(made)
            if error.path.startswith(made) and (not rest or rest[0] in ".["):
                way = self._followed(made, self._known[made], rest)
                return FieldError(format_path(way), error.message)
        return FieldError(error.path, f"(of the TrainJob) {error.message}")

    def _followed(self, made: str, source: Path, rest: str) -> Path:
        """Append steps to `source`, up to a list that has lost items: its numbers mean others there."""
        ours = value_at(self._trainjob, *_steps(made))
        theirs = value_at(self._tfjob, *source)
        way = source
        for step in _steps(rest):
            if isinstance(theirs, list) and len(theirs) != (len(ours) if isinstance(ours, list) else -1):
                break
            ours, theirs, way = value_at(ours, step), value_at(theirs, step), (*way, step)
        return way


def _steps(path: str) -> tuple[Step, ...]:
    return tuple(
        int(bracketed) if bracketed.isdecimal() else bracketed or plain
        for plain, bracketed in _STEP.findall(path)
    )
