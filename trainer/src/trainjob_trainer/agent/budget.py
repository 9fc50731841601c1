"""How often training is started again, after how long, and what a job's agents remember of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from trainjob_trainer.agent.failure import Failure, find_exception, is_mistake

# What a job's agents have to remember of its restarts: it travels, so that no agent's end loses it.


@dataclass(frozen=True)
class Ledger:
    """Counts that only grow, so that what two sides know is merged by taking the larger ones.

    Attributes:
        attempt: the latest start of training.
        charged: restarts for what the user's program did.
        uncharged: restarts for anything else, as far as the agents count them.
        refunded: how many of the charged ones real progress has made good.
        since_progress: restarts in a row without any; the one figure that falls back to 0.
        furthest_step: the furthest step at which training has been cut off, or None.
    """

    attempt: int = 0
    charged: int = 0
    uncharged: int = 0
    refunded: int = 0
    since_progress: int = 0
    furthest_step: int | None = None

    @classmethod
    def from_json(cls, raw: object) -> Ledger:
        """Read a ledger leniently: what is missing or of an unexpected type is 0."""
        values = raw if isinstance(raw, dict) else {}
        step = values.get("furthestStep")
        return cls(
            attempt=_count(values.get("attempt")),
            charged=_count(values.get("charged")),
            uncharged=_count(values.get("uncharged")),
            refunded=_count(values.get("refunded")),
            since_progress=_count(values.get("sinceProgress")),
            furthest_step=step if _is_int(step) else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        return {
            "attempt": self.attempt,
            "charged": self.charged,
            "uncharged": self.uncharged,
            "refunded": self.refunded,
            "sinceProgress": self.since_progress,
            "furthestStep": self.furthest_step,
        }

    @property
    def used(self) -> int:
        """Return how many restarts count against the limit."""
        return max(0, self.charged - self.refunded)

    def merge(self, other: Ledger) -> Ledger:
        """Return what both know together.

        Restarts in a row are taken from whichever knows of more; where both know of as many, the smaller
        figure is the later one.
        """
        latest = max(self, other, key=lambda one: (*one._age, -one.since_progress))
        return Ledger(
            attempt=max(self.attempt, other.attempt),
            charged=max(self.charged, other.charged),
            uncharged=max(self.uncharged, other.uncharged),
            refunded=max(self.refunded, other.refunded),
            since_progress=latest.since_progress,
            furthest_step=furthest((self.furthest_step, other.furthest_step)),
        )

    def at_least(self, attempt: int) -> Ledger:
        """Return the ledger when somebody has seen this attempt."""
        return replace(self, attempt=max(self.attempt, attempt))

    def cut_off(self, step: int | None) -> Ledger:
        """Return the ledger once training has been stopped at this step, for whatever reason."""
        return replace(self, furthest_step=furthest((self.furthest_step, step)))

    def restarted(self, *, charged: bool) -> Ledger:
        """Return the ledger with one more restart that is the agents' to count."""
        return replace(
            self,
            charged=self.charged + int(charged),
            uncharged=self.uncharged + int(not charged),
            since_progress=self.since_progress + 1,
        )

    def progressed(self, step: int | None, checkpoint_step: int | None, resumed_from: int | None) -> Ledger:
        """Return the ledger after a report: a step beyond all before, or a checkpoint beyond, which refunds.

        What was reached before `resumed_from`, where this attempt began, is no progress.
        """
        known = furthest((self.furthest_step, resumed_from, 0)) or 0
        changes = {}
        if self.since_progress and step is not None and step > known:
            changes["since_progress"] = 0
        if self.refunded < self.charged and checkpoint_step is not None and checkpoint_step > known:
            changes["refunded"] = self.charged
        return replace(self, **changes) if changes else self

    @property
    def _age(self) -> tuple[int, int]:
        return self.attempt, self.charged + self.uncharged


def furthest(steps: Iterable[int | None]) -> int | None:
    """Return the largest of the known steps, or None."""
    return max((step for step in steps if step is not None), default=None)


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# How often training is started again, and after how long.


MOST_ALIKE = 3
"""The same failure at the same step so many times in a row will come again.

It is the same exception at the same place, whichever replica was first; without one, the same replica's.
"""

EARLY_SECONDS = 60.0
"""Without a step, failures are the same only where attempts were this short: they failed at their start."""

LONGEST_DELAY = 60.0


@dataclass(frozen=True)
class Verdict:
    """Whether training is given up after a failure, which is marked if it has been repeated."""

    failure: Failure
    give_up: bool


class Budget:
    """The ledger, what may still be spent, and when.

    `max_restarts` limits the charged restarts; training may be started next at `not_before`.
    """

    def __init__(self, ledger: Ledger, max_restarts: int, now: float) -> None:
        self.ledger = ledger
        self.max_restarts = max_restarts
        self.not_before = now
        self._gone = ""
        self._latest: tuple[object, ...] | None = None
        self._alike = 0

    def judge(self, failure: Failure, started: float, now: float) -> Verdict:
        """Decide whether training goes on after a failure, and count the restart if it does."""
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
