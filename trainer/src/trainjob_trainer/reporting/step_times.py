"""How long steps took since somebody last looked: each call's mean, as often as the call had steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Drained:
    """What was collected.

    Attributes:
        seconds: of each step, a float32 array; what a histogram is made of.
        figures: `input_share`, the part of the time in which this replica waited for its data, from 0 to 1;
            nothing where that isn't known.
    """

    seconds: np.ndarray[Any, Any]
    figures: Mapping[str, float]


class StepTimes:
    """Collects until it is drained."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, float, float | None]] = []

    def add(self, count: int, seconds: float, input_seconds: float | None) -> None:
        """Take note of a call.

        Args:
            count: its steps.
            seconds: that it took.
            input_seconds: that a step of it waited for its data, if known.
        """
        self._calls.append((count, seconds, input_seconds))

    def drain(self) -> Drained:
        """Return what there is, and begin anew."""
        calls, self._calls = self._calls, []
        means = np.array([seconds / max(count, 1) for count, seconds, _ in calls], np.float32)
        counts = [count for count, _, _ in calls]
        known = [(count * waited, seconds) for count, seconds, waited in calls if waited is not None]
        total = sum(seconds for _, seconds in known)
        share = sum(waited for waited, _ in known) / total if total > 0 else None
        figures = {} if share is None else {"input_share": min(1.0, max(0.0, share))}
        return Drained(np.repeat(means, counts) if calls else means, figures)
