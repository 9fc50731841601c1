"""Progress from the child's file, the detection of stalls, and the replica to blame."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainjob_trainer.atomic_file import TEMPORARY, version_of

# The child's progress file, read a few times a second; it is replaced as a whole (docs/contract.md).


_MAX_BYTES = 1 << 20


def has_stepped(report: Mapping[str, Any], first_step: Any) -> bool:
    """Return whether a process has taken a step itself: an earlier one may have taken `first_step`."""
    return "stepSeconds" in report or report.get("step") != first_step


class ProgressWatch:
    """The latest whole report and its age."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._seen: tuple[int, ...] | None = None
        self._replaced_at: float | None = None
        self._first_step: Any = None
        self._moved_at = clock()
        self.report: Mapping[str, Any] | None = None

    @property
    def pause(self) -> float:
        """Return the seconds since the process has reported another step or state, or has begun."""
        return self._clock() - self._moved_at

    @property
    def has_stepped(self) -> bool:
        """Return whether the process has taken a step itself."""
        return has_stepped(self.report or {}, self._first_step)

    @property
    def age(self) -> float | None:
        """Return the seconds since the file was last replaced; None before the first time."""
        return None if self._replaced_at is None else self._clock() - self._replaced_at

    def begin(self) -> None:
        """Drop the report and the files of an earlier process."""
        for path in (self._path, self._path.with_name(TEMPORARY + self._path.name)):
            with contextlib.suppress(OSError):
                path.unlink()
        self.report, self._replaced_at, self._first_step = None, None, None
        self._moved_at = self._clock()
        self._seen = version_of(self._path)  # a file that could not be removed is not this process's

    def look(self) -> bool:
        """Read the file; return whether the report has changed."""
        version = version_of(self._path)
        if version is None or version == self._seen:
            return False
        try:
            report = self._read()
        except OSError:
            return False  # the next look reads it: it may be the last one of its process
        self._seen = version
        self._replaced_at = self._clock()
        if report is None or report == self.report:
            return False
        before, self.report = self.report or {}, report
        if any(before.get(key) != report.get(key) for key in ("state", "step")):
            self._moved_at = self._clock()
        if self._first_step is None:
            self._first_step = report.get("step")
        return True

    def _read(self) -> Mapping[str, Any] | None:
        try:
            with self._path.open("rb") as file:
                report = json.loads(file.read(_MAX_BYTES))
        except (ValueError, RecursionError):
            return None
        return report if isinstance(report, dict) and isinstance(report.get("state"), str) else None


# The detection of stalls and the replica to blame: pure, with the time as an argument.
#
# If one replica stalls, all do, because every step needs them all. So the first to report a stall is rarely
# its cause.


_SIGNS_OF_LIFE = (
    *("state", "step", "epoch", "checkpointStep"),
    *("evaluatedBatches", "evaluation", "rereadBatches"),
)
_FRESH_SECONDS = 5.0
LONG_WORK_SECONDS = 600.0
"""Least limit for work that is unrelated to a step's duration: the first step of a process, which compiles
the model; validation and the preparation of a `fit`, which compile too; a save to a slow disk."""
LEAVING_SECONDS = 60.0
"""Least limit for a process that has finished and shuts TensorFlow down."""
_LONG_WORK = ("starting", "preparing", "rereading", "evaluating", "saving")


class StallWatch:
    """Detects the stall of one process from its progress reports.

    The first report with a step arms it. That step may be the one it begins at: until the process has taken
    one itself, which compiles the model, the limit is longer, as it is for other long work. A process that
    waits for storage has none, unless it trains meanwhile: then it waits in the background.
    """

    def __init__(self) -> None:
        self._signs: tuple[Any, ...] | None = None
        self._first_step: Any = None
        self._since = 0.0
        self._least = 0.0

    def observe(self, report: Mapping[str, Any] | None, now: float) -> None:
        """Record the latest report; None, at a new start, disarms the watch."""
        if report is None:
            self._signs = None
            return
        signs = (*(report.get(name) for name in _SIGNS_OF_LIFE), "waitingForStorage" in report)
        if signs == self._signs or (self._signs is None and report.get("step") is None):
            return
        if self._signs is None:
            self._first_step = report["step"]
        self._signs, self._since = signs, now
        self._least = self._least_seconds(report)

    def hold(self, now: float) -> None:
        """Begin again: another replica keeps this one from its next step, and rightly so."""
        self._since = now

    def stalled(self, now: float, limit: float | None) -> bool:
        """Return whether there was no progress for `limit` seconds; False without a limit."""
        if limit is None or self._signs is None:
            return False
        return now - self._since >= max(limit, self._least)

    def is_at_long_work(self, now: float, limit: float | None) -> bool:
        """Return whether it does work that may take longer than a step; the others wait for it."""
        return self._signs is not None and self._least > 0 and not self.stalled(now, limit)

    def _least_seconds(self, report: Mapping[str, Any]) -> float:
        state = report.get("state")
        if state == "waiting" or ("waitingForStorage" in report and state != "training"):
            return math.inf
        if state == "finished":
            return LEAVING_SECONDS
        steps = has_stepped(report, self._first_step) and state not in _LONG_WORK
        return 0.0 if steps else LONG_WORK_SECONDS


@dataclass(frozen=True)
class Rank:
    """The state of one replica in a stall.

    Attributes:
        stopped: its process is stopped (SIGSTOP, a debugger).
        report_age: seconds since its progress file was last replaced; None if it never was.
        step: the last step it reported; None if it reported none.
        reported: its own watch has detected the stall.
        takes_steps: it reports steps; replicas that serve others don't.
    """

    replica: str
    stopped: bool = False
    report_age: float | None = None
    step: int | None = None
    reported: bool = False
    takes_steps: bool = True


def blame(ranks: Iterable[Rank]) -> str:
    """Return the replica, of at least one, that blocks the others, by the surest sign.

    A process that is stopped; else one whose progress file is old while others' are not; else the only one
    with the lowest step; else one that reported the stall.
    """
    known = sorted(ranks, key=lambda rank: rank.replica)
    stopped, reported = [r for r in known if r.stopped], [r for r in known if r.reported]
    suspects = stopped or _silent(known) or _behind(known) or reported or known
    return suspects[0].replica


def _silent(ranks: list[Rank]) -> list[Rank]:
    """Return those whose report is over twice as old as the newest, the oldest first."""
    aged = [(rank.report_age, rank) for rank in ranks if rank.report_age is not None]
    if not aged:
        return []
    limit = 2 * min(age for age, _ in aged) + _FRESH_SECONDS
    return [rank for age, rank in sorted(aged, key=lambda pair: -pair[0]) if age > limit]


def _behind(ranks: list[Rank]) -> list[Rank]:
    counting = [rank for rank in ranks if rank.takes_steps]
    steps = [-1 if rank.step is None else rank.step for rank in counting]
    last = [rank for rank, step in zip(counting, steps) if step == min(steps)]
    return last if len(last) == 1 < len(counting) else [rank for rank in last if rank.reported]
