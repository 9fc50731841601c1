"""One start of training, from the barrier to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainjob_trainer.agent.failure import Failure
from trainjob_trainer.agent.messages import FINISHED, count_roles
from trainjob_trainer.agent.roster import Member, Roster
from trainjob_trainer.agent.stall import StallWatch

CULPRIT_GRACE = 0.5
"""Seconds that failures which follow from another one wait for it to be told."""


@dataclass
class Attempt:
    """What the leading agent knows of it.

    Attributes:
        number: 1 for the first; each is higher than all before.
        seats: who takes part, by role.
        started: when.
        pods: their pods.
        done: seats whose training process has ended well.
        failures: in the order in which they were told.
        judged_at: when the first failure is looked for among them; None while there is none.
        graceful: once it is being stopped: whether it may save first.
        stacks: whether training processes show first where they stand.
        watches: whether each seat's training process gets on.
    """

    number: int
    seats: Sequence[str]
    started: float
    pods: Mapping[str, str]
    done: set[str] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    judged_at: float | None = None
    graceful: bool = False
    stacks: bool = False
    watches: dict[str, StallWatch] = field(default_factory=dict)

    @property
    def world(self) -> dict[str, int]:
        """Return how many replicas of each role take part."""
        return count_roles(self.seats)

    @property
    def is_finished(self) -> bool:
        """Tell whether training has reached its end; parameter servers never end by themselves."""
        roles = ("chief",) if {"chief", "ps"} <= set(self.world) else ("chief", "worker")
        return {seat for seat in self.seats if seat.rpartition("-")[0] in roles} <= self.done

    def takes_part(self, member: Member) -> bool:
        """Tell whether somebody was ordered to start in this attempt."""
        return member.attempt == self.number and member.seat in self.pods

    def trainees(self, roster: Roster) -> list[Member]:
        """Return those who take part and are there."""
        return [member for member in roster.trainees if self.takes_part(member)]

    def observe(self, member: Member, now: float) -> None:
        """Take note of what somebody who takes part has said."""
        if member.child == FINISHED:
            self.done.add(member.seat)
        self.watches.setdefault(member.seat, StallWatch()).observe(member.report, now)

    def fail(self, failure: Failure, now: float) -> None:
        """Note a failure: one that explains itself is judged at once, a cascade waits for its origin."""
        self.failures.append(failure)
        if not failure.is_cascade:
            self.judged_at = now
        elif self.judged_at is None:
            self.judged_at = now + CULPRIT_GRACE
