"""The word that training is finished: one small file beside the checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass

FILE = "final.json"
LARGEST = 1 << 20
"""Bytes of it."""


@dataclass(frozen=True)
class FinalMarker:
    """Training has reached its end.

    Attributes:
        step: the final checkpoint's: the last one, or the best.
        job_uid: the job that finished.
        ended_at: steps done in all; 0 stands for `step`.
        total_steps: what was asked for; 0 stands for `ended_at`. No less is trained again.
        stopped_early: why it ended before that; empty if it didn't.
    """

    step: int
    job_uid: str
    ended_at: int = 0
    total_steps: int = 0
    stopped_early: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ended_at", self.ended_at or self.step)
        object.__setattr__(self, "total_steps", self.total_steps or self.ended_at)

    @property
    def words(self) -> str:
        """`finished at step 400`, or `stopped early at step 120 of 400: val_loss has not improved ...`."""
        if not self.stopped_early:
            return f"finished at step {self.ended_at}"
        return f"stopped early at step {self.ended_at} of {self.total_steps}: {self.stopped_early}"

    def to_json(self, now: float) -> str:
        """Return the file's text; `now` is in seconds since 1970."""
        facts = {
            "step": self.step,
            "endedAt": self.ended_at,
            "totalSteps": self.total_steps,
            **({"stoppedEarly": self.stopped_early} if self.stopped_early else {}),
            "jobUid": self.job_uid,
            "time": now,
        }
        return json.dumps(facts)

    @classmethod
    def from_json(cls, text: bytes) -> FinalMarker:
        """Read it, or raise ValueError."""
        try:
            facts = json.loads(text)
            return cls(
                int(facts["step"]),
                str(facts["jobUid"]),
                int(facts.get("endedAt", 0)),
                int(facts.get("totalSteps", 0)),
                str(facts.get("stoppedEarly", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"it is no final marker: {error!r}") from error
