"""What the evaluator leaves in its folder for the training: its results, and what it is scoring now."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainjob_trainer.atomic_file import write_atomically
from trainjob_trainer.checkpoint.files import explain_write_error

FOLDER = "evaluator"
RESULTS = "evaluations.jsonl"
SCORING = "scoring.json"


class Scored(NamedTuple):
    """A result: the checkpoint's step and its metrics by name."""

    step: int
    metrics: Mapping[str, float]


class EvaluatorScores:
    """The evaluator's folder, which need not exist, as the training sees it: read, and never written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def size(self) -> int:
        """Bytes of results that there are."""
        with contextlib.suppress(OSError):
            return (self._folder / RESULTS).stat().st_size
        return 0

    def read(self, begin: int) -> tuple[list[Scored], int]:
        """Return the results from this byte on, and where they end; a line under way is left for later.

        A file that is shorter by now is another one, and read from its beginning.
        """
        begin = begin if begin <= self.size() else 0
        try:
            with (self._folder / RESULTS).open("rb") as file:
                file.seek(begin)
                data = file.read()
        except OSError:
            return [], begin
        whole = data[: data.rfind(b"\n") + 1]
        return list(_parsed(whole)), begin + len(whole)

    def signs_of_life(self) -> tuple[int, int]:
        """Something that changes while the evaluator gets on: with each result, and about twice a minute."""
        with contextlib.suppress(OSError):
            return self.size(), (self._folder / SCORING).stat().st_mtime_ns
        return self.size(), 0

    def scoring(self) -> int | None:
        """The step of the checkpoint that is being scored, or was last."""
        try:
            return int(json.loads((self._folder / SCORING).read_text(encoding="utf-8"))["step"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


def touch_scoring(folder: Path) -> None:
    """Show, as the evaluator, that a long evaluation gets on."""
    with contextlib.suppress(OSError):
        os.utime(folder / SCORING)


def tell_scoring(folder: Path, step: int) -> None:
    """Say, as the evaluator, which checkpoint is being scored: it stays until the next one is.

    The folder is there, by `ResultsFile`. Raises OutputFull or OutputUnwritable if it can't be written.
    """
    path = folder / SCORING
    try:
        write_atomically(path, json.dumps({"step": step}))
    except OSError as error:
        raise explain_write_error(error, path) or error from error


def _parsed(lines: bytes) -> Iterator[Scored]:
    for line in lines.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            entry: Any = json.loads(line)
            # NaN and infinities, which JSON lacks, are written as text.
            yield Scored(int(entry["step"]), {str(k): float(v) for k, v in entry["metrics"].items()})
