"""Whether an evaluation stands still: an evaluator has nobody to notice it but its own agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from trainjob_trainer.agent.seat import Seat

_SIGNS_OF_LIFE = ("step", "evaluatedBatches", "evaluation")
FIRST_SECONDS = 300.0
"""For the first sign of life of a process at least: loading, tracing and compiling come before it."""


class EvaluationWatch:
    """Looks at one process's progress reports; waiting for a checkpoint is no standing still."""

    def __init__(self) -> None:
        """Nothing has been seen."""
        self._signs: tuple[Any, ...] | None = None
        self._since = 0.0
        self._has_scored = False

    def observe(self, report: Mapping[str, Any] | None, now: float) -> None:
        """Take note of the latest report, as docs/contract.md has it.

        Args:
            report: None before the first one.
            now: seconds of any clock that only goes forward.
        """
        if report is None or report.get("state") != "evaluating":
            self._signs = None
            return
        self._has_scored = self._has_scored or bool(
            report.get("evaluatedBatches") or report.get("evaluation")
        )
        signs = tuple(report.get(name) for name in _SIGNS_OF_LIFE)
        if signs != self._signs:
            self._signs, self._since = signs, now

    def stalled(self, now: float, limit: float) -> bool:
        """Whether an evaluation is under way in which nothing has moved for `limit` seconds."""
        return self._signs is not None and now - self._since >= self.patience(limit)

    def patience(self, limit: float) -> float:
        """How long nothing may move, in seconds."""
        return limit if self._has_scored else max(limit, FIRST_SECONDS)


async def watch_evaluation(seat: Seat, clock: Callable[[], float] = time.monotonic) -> None:
    """Have an evaluator's process end once it stands still; never return without a limit.

    The pod ends with it. The controller replaces it, and counts that as it counts any failure of its own.
    """
    watch, limit = EvaluationWatch(), seat.settings.stall_timeout
    while limit is not None:
        now = clock()
        watch.observe(seat.child.report, now)
        if watch.stalled(now, limit):
            seat.leave_stalled(f"no progress within an evaluation for {watch.patience(limit):g} s")
            return
        await asyncio.sleep(seat.settings.beat_seconds)
