"""Restarts: their counts, the delays before them, and which failures are alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

from trainjob_trainer.contract.exits import find_exception, is_wrong_value
from trainjob_trainer.contract.wire import integer, key_of

# The counts of a job's restarts: agents and controller exchange them, so that the end of one loses nothing.


_LARGEST = 2**31 - 1
"""What a field of the status can hold."""


@dataclass(frozen=True)
class RestartCounts:
    """Counts that only grow, so that two sides merge theirs by the larger value.

    Attributes:
        attempt: the latest start of training.
        counted: restarts that the user's program caused.
        not_counted: restarts with any other cause, as far as the agents count them.
        reset: how many of the counted ones progress has reset.
        since_progress: restarts in a row without progress; only this value returns to 0.
        furthest_step: the furthest step at which training was stopped, or None.
    """

    attempt: int = 0
    counted: int = 0
    not_counted: int = 0
    reset: int = 0
    since_progress: int = 0
    furthest_step: int | None = None

    @classmethod
    def from_json(cls, raw: object) -> RestartCounts:
        """Read counts leniently: a missing value or one of an unexpected type is 0, a huge one is cut."""
        values = raw if isinstance(raw, dict) else {}
        numbers = {each.name: integer(values.get(key_of(each.name))) for each in fields(cls)}
        step = numbers.pop("furthest_step")
        counts = {name: min(max(0, number or 0), _LARGEST) for name, number in numbers.items()}
        return cls(**counts, furthest_step=step)

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return {key_of(name): value for name, value in vars(self).items()}

    @property
    def restarts(self) -> int:
        """Return all restarts, counted or not."""
        return self.counted + self.not_counted

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
            key=lambda one: (one.attempt, one.restarts, -one.since_progress),
        )
        return RestartCounts(
            attempt=max(self.attempt, other.attempt),
            counted=max(self.counted, other.counted),
            not_counted=max(self.not_counted, other.not_counted),
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
            not_counted=self.not_counted + int(not counted),
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


LONGEST_DELAY = timedelta(seconds=60)


def restart_delay(in_a_row: int) -> timedelta:
    """Return 0, 1, 2, 4, … 60 s for the 1st, 2nd, … restart in a row without progress."""
    return min(timedelta(seconds=2 ** min(in_a_row - 2, 10)), LONGEST_DELAY) if in_a_row > 1 else timedelta(0)


def most_alike(exit_code: int | None, log_tail: str, step: int | None) -> int:
    """Return after how many failures alike in a row a restart can't help."""
    return 2 if not step and is_wrong_value(exit_code, log_tail) else 3


EARLY_SECONDS = 60.0
"""Failures without a step are alike only in attempts this short: they failed at their start."""


def likeness(
    replica: str, reason: str, exit_code: int | None, log_tail: str, step: int | None
) -> tuple[object, ...]:
    """Return what is the same of failures that are alike.

    It is the step, and the same exception at the same place, of any replica; without an exception, the same
    replica.
    """
    raised = find_exception(exit_code, log_tail)
    cause = replica if raised is None else (raised.kind, raised.place)
    return cause, reason, exit_code, step
