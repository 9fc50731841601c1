"""The notes and refusals of a conversion, and the fields that they refer to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.api import FieldError
from trainjob.api.errors import Step, format_path, value_at

# Notes on single fields, and refusals, which make a conversion impossible.


Path = tuple[Step, ...]


@dataclass(frozen=True)
class Note:
    """A note on a field of the TFJob that isn't carried over unchanged.

    Attributes:
        path: the field, such as `spec.runPolicy.cleanPodPolicy`.
        message: what happens instead, and what the user must do, if anything.
    """

    path: str
    message: str


class Notes:
    """Collects the notes and refusals of one conversion, in the order in which they are found."""

    def __init__(self) -> None:
        self._notes: dict[Note, None] = {}
        self._refusals: dict[FieldError, None] = {}

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes, without duplicates."""
        return tuple(self._notes)

    @property
    def refusals(self) -> tuple[FieldError, ...]:
        """The reasons why the TFJob can't become a TrainJob, by the TFJob's fields."""
        return tuple(self._refusals)

    def note(self, path: Path, message: str) -> None:
        """Note what happens to a field."""
        self._notes[Note(format_path(path), message)] = None

    def refuse(self, path: Path, message: str) -> None:
        """Record why there can be no TrainJob."""
        self._refusals[FieldError(format_path(path), message)] = None

    def note_rest(self, holder: Mapping[str, Any], known: frozenset[str], path: Path, message: str) -> None:
        """Note each unknown field of an object; null means absent, as it does for the API server."""
        for key, value in holder.items():
            if key not in known and value is not None:
                self.note((*path, str(key)), message)


# The TFJob's field from which a field of the TrainJob comes.


_STEP = re.compile(r"\.?([^.\[\]]+)|\[([^\]]*)\]")


class Origins:
    """Maps fields of the TrainJob to the TFJob's fields from which they come."""

    def __init__(self, tfjob: Mapping[str, Any], trainjob: Mapping[str, Any]) -> None:
        self._tfjob = tfjob
        self._trainjob = trainjob
        self._known: dict[str, Path] = {"metadata": ("metadata",)}

    def add(self, made: Path, source: Path) -> None:
        """Record that the field `made` and its content come from the field `source`."""
        self._known[format_path(made)] = source

    def trace(self, error: FieldError) -> FieldError:
        """Return the error with the TFJob's field; mark the message if only the TrainJob has the field."""
        for made in sorted(self._known, key=len, reverse=True):
            rest = error.path.removeprefix(made)
            if error.path.startswith(made) and (not rest or rest[0] in ".["):
                way = self._followed(made, self._known[made], rest)
                return FieldError(format_path(way), error.message)
        return FieldError(error.path, f"(of the TrainJob) {error.message}")

    def _followed(self, made: str, source: Path, rest: str) -> Path:
        """Append steps to `source`, up to a list that has lost items: its indices differ in the TFJob."""
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
