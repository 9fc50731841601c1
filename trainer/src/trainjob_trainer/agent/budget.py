"""The restart budget: how often and when training restarts, and the counts that a job's agents share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from trainjob_trainer.agent.failure import Failure, integer
from trainjob_trainer.contract.exits import find_exception, is_mistake

# The counts of a job's restarts: agents exchange them, so that the end of one loses nothing.


_JSON_NAMES = {
    "attempt": "attempt",
    "counted": "charged",
    "uncounted": "uncharged",
    "reset": "refunded",
    "since_progress": "sinceProgress",
    "furthest_step": "furthestStep",
}


@dataclass(frozen=True)
class RestartCounts:
    """Counts that only grow, so that two sides merge theirs by the larger value.

    Attributes:
        attempt: the latest start of training.
        counted: restarts that the user's program caused.
        uncounted: restarts with any other cause, as far as the agents count them.
        reset: how many of the counted ones progress has reset.
        since_progress: restarts in a row without progress; only this value returns to 0.
        furthest_step: the furthest step at which training was stopped, or None.
    """

    attempt: int = 0
    counted: int = 0
    uncounted: int = 0
    reset: int = 0
    since_progress: int = 0
    furthest_step: int | None = None

    @classmethod
    def from_json(cls, raw: object) -> RestartCounts:
        """Read counts leniently: a missing value or one of an unexpected type is 0."""
        values = raw if isinstance(raw, dict) else {}
        numbers = {name: integer(values.get(key)) for name, key in _JSON_NAMES.items()}
        step = numbers.pop("furthest_step")
        return cls(**{name: max(0, number or 0) for name, number in numbers.items()}, furthest_step=step)

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return {key: getattr(self, name) for name, key in _JSON_NAMES.items()}

    @property
    def used(self) -> int:
        """Return the number of restarts that count against the limit."""
        return max(0, self.counted - self.reset)

    def merge(self, other: RestartCounts) -> RestartCounts:
        """Return the merged counts.

        Restarts in a row come from the side with more attempts and restarts; if both have as many, the
        smaller value is the later one.
        """
        latest = max(
            (self, other),
            key=lambda one: (one.attempt, one.counted + one.uncounted, -one.since_progress),
        )
        return RestartCounts(
            attempt=max(self.attempt, other.attempt),
            counted=max(self.counted, other.counted),
            uncounted=max(self.uncounted, other.uncounted),
            reset=max(self.reset, other.reset),
            since_progress=latest.since_progress,
            furthest_step=furthest((self.furthest_step, other.furthest_step)),
        )

    def at_least(self, attempt: int) -> RestartCounts:
        """Return the counts with this attempt, if it is later."""
        return replace(self, attempt=max(self.attempt, attempt))

    def cut_off(self, step: int | None) -> RestartCounts:
        """Return the counts after training was stopped at this step."""
        return replace(self, furthest_step=furthest((self.furthest_step, step)))

    def restarted(self, *, counted: bool) -> RestartCounts:
        """Return the counts with one more restart that the agents count."""
        return replace(
            self,
            counted=self.counted + int(counted),
            uncounted=self.uncounted + int(not counted),
            since_progress=self.since_progress + 1,
        )

    def progressed(
        self, step: int | None, checkpoint_step: int | None, resumed_from: int | None
    ) -> RestartCounts:
        """Return the counts after a report: a further step is progress, a further checkpoint resets.

        Steps up to `resumed_from`, where this attempt began, are no progress.
        """
        known = furthest((self.furthest_step, resumed_from, 0)) or 0
        changes = {}
        if self.since_progress and step is not None and step > known:
            changes["since_progress"] = 0
        if self.reset < self.counted and checkpoint_step is not None and checkpoint_step > known:
            changes["reset"] = self.counted
        return replace(self, **changes) if changes else self


def furthest(steps: Iterable[int | None]) -> int | None:
    """Return the largest of the known steps, or None."""
    return max((step for step in steps if step is not None), default=None)


MOST_ALIKE = 3
"""After so many equal failures at the same step in a row, a restart can't help.

Equal is the same exception at the same place, of any replica; without an exception, the same replica's.
"""

EARLY_SECONDS = 60.0
"""Failures without a step are equal only in attempts this short: they failed at their start."""

LONGEST_DELAY = 60.0


@dataclass(frozen=True)
class Verdict:
    """The decision after a failure: give up or restart; the failure is marked if it is repeated."""

    failure: Failure
    give_up: bool


class Budget:
    """The restart counts, their limit and the back-off.

    `max_restarts` limits the counted restarts; `not_before` is the earliest time of the next start.
    """

    def __init__(self, counts: RestartCounts, max_restarts: int, now: float) -> None:
        self.counts = counts
        self.max_restarts = max_restarts
        self.not_before = now
        self._gone = ""
        self._latest: tuple[object, ...] | None = None
        self._alike = 0

    def judge(self, failure: Failure, started: float, now: float) -> Verdict:
        """Decide whether training restarts after a failure, and count the restart."""
        has_stepped = bool(failure.step or self.counts.furthest_step)
        is_first = failure.attempt <= 1 and not has_stepped
        if is_first and is_mistake(failure.exit_code, failure.log_tail):
            return Verdict(replace(failure, permanent=True), give_up=True)
        if failure.counted and self._times_alike(failure, now - started) >= MOST_ALIKE:
            return Verdict(replace(failure, repeated=True), give_up=True)
        spent = failure.counted and self.counts.used >= self.max_restarts
        if failure.permanent or spent:
            return Verdict(failure, give_up=True)
        self.counts = self.counts.restarted(counted=failure.counted)
        self._back_off(now)
        return Verdict(failure, give_up=False)

    def interrupted(self, pod: str, now: float) -> None:
        """Record a restart that the controller counts, because it knows the end of this pod."""
        self._gone = pod
        self.counts = replace(self.counts, since_progress=self.counts.since_progress + 1)
        self._back_off(now)

    def came_back(self, pod: str) -> None:
        """Count an interruption if the pod is the same: the controller has not seen the loss."""
        if pod == self._gone:
            self._gone = ""
            self.counts = replace(self.counts, uncounted=self.counts.uncounted + 1)

    def _back_off(self, now: float) -> None:
        self.not_before = now + restart_delay(self.counts.since_progress)

    def _times_alike(self, failure: Failure, lasted: float) -> int:
        place: object | None = failure.step
        if place is None:
            place = "early" if lasted < EARLY_SECONDS else (failure.attempt,)
        raised = find_exception(failure.exit_code, failure.log_tail)
        cause = failure.replica if raised is None else (raised.kind, raised.place)
        key = (cause, failure.reason, failure.exit_code, place)
        self._alike = self._alike + 1 if key == self._latest else 1
        self._latest = key
        return self._alike


def restart_delay(in_a_row: int) -> float:
    """Return 0, 1, 2, 4, … 60 s for the 1st, 2nd, … restart in a row without progress."""
    return 0.0 if in_a_row < 2 else min(2.0 ** min(in_a_row - 2, 10), LONGEST_DELAY)
