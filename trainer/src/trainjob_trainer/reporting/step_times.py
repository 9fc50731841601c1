"""Recent average duration of a step, measured from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

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
