"""The restart budget: how often and when training restarts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainjob_trainer.contract.exits import is_mistake
from trainjob_trainer.contract.reports import Failure
from trainjob_trainer.contract.restarts import (
    EARLY_SECONDS,
    RestartCounts,
    likeness,
    most_alike,
    restart_delay,
)


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
        most = most_alike(failure.exit_code, failure.log_tail, failure.step)
        if failure.counted and self._times_alike(failure, now - started) >= most:
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
            self.counts = replace(self.counts, not_counted=self.counts.not_counted + 1)

    def _back_off(self, now: float) -> None:
        self.not_before = now + restart_delay(self.counts.since_progress).total_seconds()

    def _times_alike(self, failure: Failure, lasted: float) -> int:
        key = likeness(failure.replica, failure.reason, failure.exit_code, failure.log_tail, failure.step)
        if failure.step is None and lasted >= EARLY_SECONDS:
            key = (*key, failure.attempt)
        self._alike = self._alike + 1 if key == self._latest else 1
        self._latest = key
        return self._alike
