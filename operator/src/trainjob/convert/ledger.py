"""What is said about a conversion while it is made: notes on single fields, and what makes it impossible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.api import FieldError
from trainjob.api.paths import Step, format_path

Path = tuple[Step, ...]


@dataclass(frozen=True)
class Note:
    """A field of the TFJob that isn't simply carried over.

    Attributes:
        path: the field, `spec.runPolicy.cleanPodPolicy`.
        message: what happens instead and, where there is something to do, what.
    """

    path: str
    message: str


class Ledger:
    """Collects the notes and refusals of one conversion, in the order in which they are found."""

    def __init__(self) -> None:
        self._notes: dict[Note, None] = {}
        self._refusals: dict[FieldError, None] = {}

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes, each once."""
        return tuple(self._notes)

    @property
    def refusals(self) -> tuple[FieldError, ...]:
        """What keeps the TFJob from becoming a TrainJob, by the TFJob's fields."""
        return tuple(self._refusals)

    def note(self, path: Path, message: str) -> None:
        """Say what becomes of a field."""
        self._notes[Note(format_path(path), message)] = None

    def refuse(self, path: Path, message: str) -> None:
        """Say why there can be no TrainJob."""
        self._refusals[FieldError(format_path(path), message)] = None

    def note_rest(self, holder: Mapping[str, Any], known: frozenset[str], path: Path, message: str) -> None:
        """Note each field of an object that isn't known; null means absent, as it does to the API server."""
        for key, value in holder.items():
            if key not in known and value is not None:
                self.note((*path, str(key)), message)
