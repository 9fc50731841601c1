"""Step durations, measured from outside: the mean of each call, once for each of its steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np


class StepTimes:
    """Collects step times until `drain`."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, float, float | None]] = []

    def add(self, count: int, seconds: float, input_seconds: float | None) -> None:
        """Add a call of `count` steps; each waited `input_seconds` for its data, None if unknown."""
        self._calls.append((count, seconds, input_seconds))

    def drain(self) -> tuple[np.ndarray[Any, Any], dict[str, float]]:
        """Return the duration in seconds of each step, float32 of shape (steps,), and figures; remove them.

        `input_share` is the share of the time in which this replica waited for its data, from 0 to 1; it is
        missing if it is unknown.
        """
        calls, self._calls = self._calls, []
        means = np.array([seconds / max(count, 1) for count, seconds, _ in calls], np.float32)
        counts = [count for count, _, _ in calls]
        known = [(count * waited, seconds) for count, seconds, waited in calls if waited is not None]
        total = sum(seconds for _, seconds in known)
        share = sum(waited for waited, _ in known) / total if total > 0 else None
        figures = {} if share is None else {"input_share": min(1.0, max(0.0, share))}
        return np.repeat(means, counts) if calls else means, figures


# Recent average duration of a step.


_WINDOW_SECONDS = 1.0


class StepClock:
    """Averages step durations over about a second; leaves out the first step, which traces."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: tuple[int, float] | None = None
        self._seconds: float | None = None

    def look(self, step: int, global_batch: int | None = None) -> dict[str, Any]:
        """Return the known averages after `step` steps, as fields of `Progress`."""
        self._measure(step, self._clock())
        if self._seconds is None:
            return {}
        known = {"step_seconds": self._seconds}
        return {**known, "examples_per_second": global_batch / self._seconds} if global_batch else known

    def _measure(self, step: int, now: float) -> None:
        if self._since is None:
            self._since = step, now
            return
        steps, seconds = step - self._since[0], now - self._since[1]
        if steps > 0 and seconds > 0 and (seconds >= _WINDOW_SECONDS or self._seconds is None):
            self._seconds = seconds / steps
        if seconds >= _WINDOW_SECONDS:
            self._since = step, now
