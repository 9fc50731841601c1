"""How often training is started again, and after how long."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trainjob_trainer.agent.failure import Failure, find_exception, is_mistake
from trainjob_trainer.agent.ledger import Ledger

MOST_ALIKE = 3
"""The same failure at the same step so many times in a row will come again.

It is the same exception at the same place, whichever replica was first; without one, the same replica's.
"""

EARLY_SECONDS = 60.0
"""Without a step, failures are the same only where attempts were this short: they failed at their start."""

LONGEST_DELAY = 60.0


@dataclass(frozen=True)
class Verdict:
    """What follows from a failure.

    Attributes:
        failure: the failure, marked if it has been repeated.
        give_up: training is not started again.
    """

    failure: Failure
    give_up: bool


class Budget:
    """The ledger, what may still be spent, and when.

    Args:
        ledger: as it is known at the start.
        max_restarts: how many charged restarts are allowed.
        now: the time.

    Attributes:
        not_before: when training may be started next.
    """

    def __init__(self, ledger: Ledger, max_restarts: int, now: float) -> None:
        """Nothing has failed yet."""
        self.ledger = ledger
        self.max_restarts = max_restarts
        self.not_before = now
        self._gone = ""
        self._latest: tuple[object, ...] | None = None
        self._alike = 0

    def judge(self, failure: Failure, started: float, now: float) -> Verdict:
        """Decide whether training goes on after a failure, and count the restart if it does.

        Args:
            failure: the one to blame.
            started: when that attempt began.
            now: the time.
        """
        if self._is_mistake(failure):
            return Verdict(replace(failure, permanent=True), give_up=True)
        if failure.charged and self._times_alike(failure, now - started) >= MOST_ALIKE:
            return Verdict(replace(failure, repeated=True), give_up=True)
        spent = failure.charged and self.ledger.used >= self.max_restarts
        if failure.permanent or spent:
            return Verdict(failure, give_up=True)
        self.ledger = self.ledger.restarted(charged=failure.charged)
        self._back_off(now)
        return Verdict(failure, give_up=False)

    def interrupted(self, now: float) -> None:
        """Note a restart that is the controller's to count, as it knows what became of the pod."""
        self.ledger = replace(self.ledger, since_progress=self.ledger.since_progress + 1)
        self._back_off(now)

    def went_away(self, pod: str) -> None:
        """Note whose loss has ended an attempt."""
        self._gone = pod

    def came_back(self, pod: str) -> None:
        """Count that restart if the pod is still the same: the controller has seen nothing of it."""
        if pod == self._gone:
            self._gone = ""
            self.ledger = replace(self.ledger, uncharged=self.ledger.uncharged + 1)

    def _back_off(self, now: float) -> None:
        self.not_before = now + restart_delay(self.ledger.since_progress)

    def _is_mistake(self, failure: Failure) -> bool:
        """Tell whether the first start failed before any step, by what each start would fail by."""
        has_stepped = bool(failure.step or self.ledger.furthest_step)
        return failure.attempt <= 1 and not has_stepped and is_mistake(failure.exit_code, failure.log_tail)

    def _times_alike(self, failure: Failure, lasted: float) -> int:
        place: object | None = failure.step
        if place is None:
            place = "early" if lasted < EARLY_SECONDS else (failure.attempt,)
        raised = find_exception(failure.exit_code, failure.log_tail)
        cause = failure.seat if raised is None else (raised.kind, raised.place)
        key = (cause, failure.reason, failure.exit_code, place)
        self._alike = self._alike + 1 if key == self._latest else 1
        self._latest = key
        return self._alike


def restart_delay(in_a_row: int) -> float:
    """Return 0, 1, 2, 4, … 60 s for the 1st, 2nd, … restart in a row without progress."""
    return 0.0 if in_a_row < 2 else min(2.0 ** min(in_a_row - 2, 10), LONGEST_DELAY)
