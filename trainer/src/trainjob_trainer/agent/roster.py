"""Who has come to the rendezvous: one agent a seat, the one of the seat's newest pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainjob_trainer.agent.messages import OBSERVER, QUIET, RUNNING, Beat, Join, split_seat

ABSENT = "absent"
LOST = "lost"


@dataclass
class Member:
    """One seat's agent.

    Attributes:
        incarnation: which of the seat's pods it is in.
        address: where its training process listens.
        link: the connection; None once it has ended.
        child: what its training process does, as far as is known.
        attempt: the start that it was last ordered to take part in by this leader, 0 for none.
        since: when it came into its state.
        report: the training process's last progress report, or None.
        age: seconds since that was written, or None.
        stopped: the training process was stopped by a signal.
        is_observer: no start waits for it.
    """

    seat: str
    incarnation: int
    pod: str
    address: str
    link: int | None
    child: str
    since: float
    attempt: int = 0
    report: Mapping[str, Any] | None = None
    age: float | None = None
    stopped: bool = False
    leaving: bool = False
    is_observer: bool = False

    @property
    def is_quiet(self) -> bool:
        """Tell whether no training process is left of its last start."""
        return self.child in QUIET

    @property
    def state(self) -> str:
        """Return the word for the report."""
        return LOST if self.link is None else self.child

    def become(self, child: str, now: float) -> None:
        """Note what its training process does now."""
        if child != self.child:
            self.child, self.since = child, now

    def begin(self, attempt: int, now: float) -> None:
        """Note that it has been ordered to start."""
        self.attempt, self.report, self.age, self.stopped = attempt, None, None, False
        self.become(RUNNING, now)

    def hear(self, beat: Beat, now: float) -> bool:
        """Take what it says, unless it said so before its latest start; tell whether `child` has changed."""
        if beat.attempt < self.attempt:
            return False
        before = self.child
        self.report, self.age, self.stopped = beat.report, beat.age, beat.stopped
        self.become(beat.child, now)
        return self.child != before

    def step(self, key: str = "step") -> int | None:
        """Return a step of its report: `step`, `checkpointStep` or `resumedFrom`."""
        value = (self.report or {}).get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None


class Roster:
    """The members by seat and by connection."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._links: dict[int, Member] = {}

    def admit(self, join: Join, now: float) -> Member | None:
        """Give the seat to whoever joins; None if a newer pod has had it."""
        before = self._members.get(join.seat)
        if before is not None and before.incarnation > join.incarnation:
            return None
        if before is not None:
            self.part(before, now)
        member = Member(
            join.seat,
            join.incarnation,
            join.pod,
            join.address,
            join.link,
            child=join.child,
            since=now,
            is_observer=is_observer(join.seat),
        )
        self._members[join.seat] = self._links[join.link] = member
        return member

    def part(self, member: Member, now: float) -> None:
        """Note that a member's connection has ended."""
        if member.link is not None:
            self._links.pop(member.link, None)
            member.link, member.since = None, now

    def drop(self, member: Member) -> None:
        """Forget a member whose seat is no more."""
        self._members.pop(member.seat, None)
        if member.link is not None:
            self._links.pop(member.link, None)

    def get(self, seat: str) -> Member | None:
        """Return who has, or had, the seat."""
        return self._members.get(seat)

    def on(self, link: int) -> Member | None:
        """Return who speaks on this connection."""
        return self._links.get(link)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __len__(self) -> int:
        """Return how many are there."""
        return len(self._links)

    @property
    def trainees(self) -> list[Member]:
        """Return those who are there and take part in the training, in order of their coming."""
        return [m for m in self._links.values() if not m.is_observer]

    def ready(self, seat: str, incarnation: int) -> Member | None:
        """Return the seat's agent if it can start a process, and its pod isn't older than `incarnation`."""
        member = self._members.get(seat)
        if member is None or member.link is None or member.leaving:
            return None
        return member if member.is_quiet and member.incarnation >= incarnation else None


def is_observer(seat: str) -> bool:
    """Tell whether no start waits for this seat."""
    split = split_seat(seat)
    return split is not None and split[0] == OBSERVER
