"""How many steps one call takes: the same on every worker, or their collectives would not meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable

SECONDS_A_CALL = 0.5
"""Reports, SIGTERM and failed writes are looked at between calls."""
TIMED_STEPS = 4
"""Steps of the call by which the speed is judged; the one before it traces."""
CALLS_A_LOOK = 16
"""After so many calls the speed is looked at again, if no epoch has ended."""
_MAX_STEPS = 1000
_NANOSECONDS = 1_000_000_000


class Pace:
    """Steps of the next call, by the writer's clock: each worker has its own, and all must make equal calls.

    Attributes:
        wanted: steps that the next call should take.
        is_fixed: whether that never changes.
    """

    def __init__(self, agree: Callable[[int], int]) -> None:
        """Begin with one step.

        Args:
            agree: returns the writer's number on every worker; all call it together.
        """
        self.wanted = 1
        self.is_fixed = False
        self._agree = agree
        self._calls = 0
        self._seconds_a_step = 1.0

    @classmethod
    def fixed(cls, steps: int) -> Pace:
        """Always so many."""
        pace = cls(lambda number: number)
        pace.wanted, pace.is_fixed = steps, True
        return pace

    def record(self, count: int, seconds: float) -> None:
        """A call of `count` steps took so long. All workers call it together."""
        self._calls += 1
        if self._calls > 1:  # the first one traces
            self._seconds_a_step = seconds / count
        if self._calls == 1 and not self.is_fixed:
            self.wanted = TIMED_STEPS
        elif self._calls == 2 or self._calls % CALLS_A_LOOK == 0:
            self.agree()

    def agree(self) -> None:
        """Choose anew, at the end of an epoch or whenever all workers call it together."""
        if not self.is_fixed and self._calls > 1:
            nanoseconds = self._agree(int(self._seconds_a_step * _NANOSECONDS))
            self.wanted = steps_a_call(nanoseconds / _NANOSECONDS)


def steps_a_call(seconds_a_step: float) -> int:
    """Steps that take about `SECONDS_A_CALL`."""
    return max(1, min(_MAX_STEPS, int(SECONDS_A_CALL / max(seconds_a_step, 1e-6))))


def next_call(step: int, wanted: int, total: int, periods: Iterable[int | None]) -> int:
    """Steps of the next call: `wanted`, cut at the end and at the next multiple of each period.

    Args:
        step: steps done.
        wanted: at least 1.
        total: the last step.
        periods: such as steps an epoch and steps between checkpoints; None is no period.
    """
    ends = [step + wanted, total] + [(step // period + 1) * period for period in periods if period]
    return min(ends) - step
