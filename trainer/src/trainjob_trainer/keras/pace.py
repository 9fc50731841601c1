"""The steps per call, and the calls after which workers agree: equal on all workers, so that they meet."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

SECONDS_A_CALL = 0.5
"""Reports, SIGTERM and failed writes are checked between calls."""
TIMED_STEPS = 4
"""Steps of the call that first measures the speed; the call before it traces."""
CALLS_A_LOOK = 16
"""Calls after which the speed is measured again, sooner at the start: calls may become longer."""
LONGEST = 1.5
"""Greatest length of a call, relative to the wanted one, if that avoids a further call for the rest."""
_FIRST_LOOKS = (2, 4, 8)
_MAX_STEPS = 1000
_NANOSECONDS = 1_000_000_000


class StepsPerExecution:
    """Steps of the next call, by the writer's clock: clocks differ, and all workers must make equal calls.

    `agree` returns the writer's number on every worker; all call it together. The first call takes one step.
    """

    def __init__(self, agree: Callable[[int], int]) -> None:
        self.wanted = 1
        self._agree = agree
        self._calls = 0
        self._steps = 0
        self._seconds = 0.0

    @property
    def longest(self) -> int:
        """The most steps that the next call may take."""
        return int(self.wanted * LONGEST)

    def next_call(self, left: int) -> int:
        """Return the steps of the next call, if `left` steps remain until other work is due."""
        return left if left <= self.longest else self.wanted

    def record(self, count: int, seconds: float) -> None:
        """Record the duration of a call of `count` steps. All workers call it together."""
        self._calls += 1
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
    """The calls after which workers agree on what comes next: about twice a second, equal on all workers.

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
        """Return the writer's wishes after a call; 0 if no look is due and `now` is false.

        All workers call it together, each with its own wishes.
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
    """Return the number of steps that take about `SECONDS_A_CALL`."""
    return max(1, min(_MAX_STEPS, int(SECONDS_A_CALL / max(seconds_a_step, 1e-6))))
