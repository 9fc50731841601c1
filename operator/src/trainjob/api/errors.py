"""How a wrong TrainJob is told: every mistake in one go, each with the field it is about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class FieldError:
    """One mistake.

    Attributes:
        path: the field as Kubernetes writes it, `spec.template.spec.containers[0].name`; empty for the whole.
        message: what is wrong and what to do.
        line: line in `source`, counted from 1, when it was read from text.
        source: name of the file, when it was read from one.
    """

    path: str
    message: str
    line: int | None = None
    source: str | None = None

    def __str__(self) -> str:
        place = self.source or ""
        if self.line is not None:
            place = f"{place}:{self.line}" if place else f"line {self.line}"
        field = f"{self.path}:" if self.path else ""
        if place and not field:
            place += ":"
        return " ".join(part for part in (place, field, self.message) if part)


class InvalidTrainJob(Exception):
    """The object or the text isn't a valid TrainJob.

    Attributes:
        errors: all mistakes found, at least one.
    """

    def __init__(self, errors: Iterable[FieldError]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(str(error) for error in self.errors))
