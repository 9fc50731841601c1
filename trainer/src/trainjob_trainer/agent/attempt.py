"""One start of training, from the barrier to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trainjob_trainer.agent.alone import LoneSeats
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
        alone: seats that are started again without the others.
    """

    number: int
    seats: Sequence[str]
    started: float
    pods: dict[str, str]
    done: set[str] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    judged_at: float | None = None
    graceful: bool = False
    stacks: bool = False
    watches: dict[str, StallWatch] = field(default_factory=dict)
    alone: LoneSeats = field(init=False)

    def __post_init__(self) -> None:
        """Find out who can be done without for a while."""
        self.alone = LoneSeats(self.seats, self.number, self.started)

    @property
    def latest(self) -> int:
        """Return the number of the latest start in it."""
        return max(self.number, self.alone.latest)

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
        return member.seat in self.pods and member.attempt == self.alone.number(member.seat, self.number)

    def differs(self, seats: Sequence[str], all_seats: Sequence[str]) -> bool:
        """Tell whether it has to be stopped because others are to take part.

        Args:
            seats: who would take part in a new one.
            all_seats: those too that can't be had for now.
        """
        missing = set(self.seats) - set(seats)
        is_bearable = set(seats) <= set(self.seats) and missing <= self.alone.seats & set(all_seats)
        return list(seats) != list(self.seats) and not is_bearable

    def takes_steps(self, seat: str) -> bool:
        """Tell whether a seat's process counts steps: beside parameter servers the chief does it for all."""
        return not self.alone.seats or seat.startswith("chief-")

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
