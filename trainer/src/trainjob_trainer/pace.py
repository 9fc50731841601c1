"""How many steps one call takes: the same on every worker, or their collectives would not meet."""

from __future__ import annotations

from collections.abc import Iterable

SECONDS_A_CALL = 0.5
"""Reports, SIGTERM and failed writes are looked at between calls."""
TIMED_STEPS = 4
"""Steps of the call by which the speed is judged; the one before it traces."""
_MAX_STEPS = 1000


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
