"""What a job's agents have to remember of its restarts: it travels, so that no agent's end loses it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any


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

        Args:
            step: the step that was reported.
            checkpoint_step: the newest checkpoint's.
            resumed_from: where this attempt began: what was reached before it is no progress.
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
