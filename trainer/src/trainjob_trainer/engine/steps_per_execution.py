"""How many steps a call takes, and after which calls workers agree: the same on each, so that they meet."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

SECONDS_A_CALL = 0.5
"""Reports, SIGTERM and failed writes are looked at between calls."""
TIMED_STEPS = 4
"""Steps of the call by which the speed is first judged; the one before it traces."""
CALLS_A_LOOK = 16
"""After so many calls the speed is looked at again, in the beginning sooner: they may become longer."""
LONGEST = 1.5
"""So many times the wanted length a call may have, where one of the rest alone would follow."""
_FIRST_LOOKS = (2, 4, 8)
_MAX_STEPS = 1000
_NANOSECONDS = 1_000_000_000


class StepsPerExecution:
    """Steps of the next call, by the writer's clock: each worker has its own, and all must make equal calls.

    `agree` returns the writer's number on every worker; all call it together. The first call takes one step.
    """

    def __init__(self, agree: Callable[[int], int]) -> None:
        self.wanted = 1
        self.is_fixed = False
        self._agree = agree
        self._calls = 0
        self._steps = 0
        self._seconds = 0.0

    @classmethod
    def fixed(cls, steps: int) -> StepsPerExecution:
        """Always so many."""
        executions = cls(lambda number: number)
        executions.wanted, executions.is_fixed = steps, True
        return executions

    @property
    def longest(self) -> int:
        """The most steps that the next call may take."""
        return self.wanted if self.is_fixed else int(self.wanted * LONGEST)

    def next_call(self, left: int) -> int:
        """Steps of the next call, where so many are left until something else is to be done."""
        return left if left <= self.longest else self.wanted

    def record(self, count: int, seconds: float) -> None:
        """A call of `count` steps took so long. All workers call it together."""
        self._calls += 1
        if self.is_fixed:
            return
        if self._calls == 1:  # it traces
            self.wanted = TIMED_STEPS
            return
        self._steps += count
        self._seconds += seconds
        if self._calls in _FIRST_LOOKS or self._calls % CALLS_A_LOOK == 0:
            nanoseconds = self._agree(int(self._seconds / self._steps * _NANOSECONDS))
            self.wanted = steps_a_call(nanoseconds / _NANOSECONDS)
            self._steps, self._seconds = 0, 0.0


class Looks:
    """After which calls the workers agree on what comes next: about twice a second, and the same on each.

    `agree` returns the writer's numbers on every worker; all call it together. The first look is after the
    first call.
    """

    def __init__(
        self,
        agree: Callable[[Sequence[int]], Sequence[int]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._agree = agree
        self._clock = clock
        self._since = clock()
        self._calls = 0
        self._until = 1

    def after_call(self, wishes: Callable[[], int], *, now: bool = False) -> int:
        """A call has ended: return the writer's wishes; 0 where it isn't time to look and `now` is false.

        All workers call it together, each with wishes of its own.
        """
        self._calls += 1
        if self._calls < self._until and not now:
            return 0
        a_call = (self._clock() - self._since) / self._calls
        wished, nanoseconds = self._agree([wishes(), int(a_call * _NANOSECONDS)])
        wanted = int(SECONDS_A_CALL * _NANOSECONDS / max(nanoseconds, 1))
        self._until = max(1, min(CALLS_A_LOOK, wanted))
        self._calls, self._since = 0, self._clock()
        return wished


def steps_a_call(seconds_a_step: float) -> int:
    """Steps that take about `SECONDS_A_CALL`."""
    return max(1, min(_MAX_STEPS, int(SECONDS_A_CALL / max(seconds_a_step, 1e-6))))


def next_stop(step: int, total: int, periods: Iterable[int | None]) -> int:
    """The step at which something other than steps is to be done next, when `step` are done.

    Periods are such as steps an epoch and steps between checkpoints; None is no period.
    """
    return min([total] + [(step // period + 1) * period for period in periods if period])
