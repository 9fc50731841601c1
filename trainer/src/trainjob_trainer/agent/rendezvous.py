"""Where a job's agents meet: who has come, whom the controller wants, and who is sent away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainjob_trainer.agent.budget import EARLY_SECONDS, Ledger, restart_delay
from trainjob_trainer.agent.messages import (
    OBSERVER,
    QUIET,
    RUNNING,
    Beat,
    Effect,
    HangUp,
    Join,
    Order,
    Send,
    count_roles,
    end,
    seats_of,
    split_seat,
    start,
    stop,
    welcome,
)
from trainjob_trainer.errors import ExitCode

# Who has come to the rendezvous: one agent a seat, the one of the seat's newest pod.


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


# Seats whose training process is started again alone, while the others go on.
#
# With parameter servers the chief hands a dead worker's steps to another one, and takes a worker back in
# that listens at the same address again. Nobody else can be missed like that: the variables lie on the
# `ps`, and the chief knows what has been done.


class LoneSeats:
    """Those of one attempt, and what has become of them."""

    def __init__(self, seats: Iterable[str], number: int, now: float) -> None:
        self.seats = lone_seats(list(seats))
        self._numbers = dict.fromkeys(self.seats, number)
        self._started = dict.fromkeys(self.seats, now)
        self._in_a_row = dict.fromkeys(self.seats, 0)
        self._due: dict[str, float] = {}

    def __contains__(self, seat: object) -> bool:
        return seat in self.seats

    def number(self, seat: str, otherwise: int) -> int:
        """Return the number of the latest start: above the attempt's once it was started alone."""
        return self._numbers.get(seat, otherwise)

    @property
    def latest(self) -> int:
        """Return the highest of these numbers, 0 for none."""
        return max(self._numbers.values(), default=0)

    @property
    def wake_at(self) -> float | None:
        """Return when the next of them is due."""
        return min(self._due.values(), default=None)

    def started(self, seat: str) -> float:
        """Return when it was started last."""
        return self._started[seat]

    def is_counted(self, seat: str) -> bool:
        """Tell whether the restart that it waits for has been counted."""
        return seat in self._due

    def is_due(self, seat: str, now: float) -> bool:
        """Tell whether it may be started."""
        return self._due.get(seat, now) <= now

    def failed(self, seat: str, now: float) -> None:
        """Note that it has failed, and is to be started again after 0, 1, 2, 4, ... s.

        One that has lasted for a minute begins this row anew.
        """
        lasted = now - self._started[seat]
        self._in_a_row[seat] = 1 if lasted >= EARLY_SECONDS else self._in_a_row[seat] + 1
        self._due[seat] = now + restart_delay(self._in_a_row[seat])

    def begin(self, seat: str, number: int, now: float) -> None:
        """Note that it is being started again."""
        self._due.pop(seat, None)
        self._numbers[seat], self._started[seat] = number, now


def lone_seats(seats: list[str]) -> frozenset[str]:
    """Return those of an attempt's seats that the others can do without for a while."""
    if not {"chief", "ps"} <= set(count_roles(seats)):
        return frozenset()
    return frozenset(seat for seat in seats if seat.startswith("worker-"))


@dataclass(frozen=True)
class Place:
    """Where the leading agent works.

    Attributes:
        seat: its own, whose training process writes the checkpoints.
        incarnation: which of the seat's pods it is in.
        cluster: addresses of all roles as TF_CONFIG has them.
        link: on which its own seat joins; nobody else is let into that seat.
        unix_time: what to add to the gang's clock for Unix time.
    """

    seat: str
    incarnation: int
    cluster: Mapping[str, Sequence[str]]
    link: int = 0
    beat_seconds: float = 1.0
    lost_seconds: float = 10.0
    unix_time: float = 0.0


class Outbox:
    """What is to be said, in order."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def say(self, link: int, message: Mapping[str, Any]) -> None:
        """Say this on a connection."""
        self._effects.append(Send(link, message))

    def hang_up(self, link: int) -> None:
        """End a connection after what has been said."""
        self._effects.append(HangUp(link))

    def take(self) -> list[Effect]:
        """Return all of it, and begin anew."""
        effects, self._effects = self._effects, []
        return effects


class Rendezvous:
    """Members, and the controller's latest order, before which TF_CONFIG's world and `stall_timeout` hold."""

    def __init__(self, place: Place, outbox: Outbox, stall_timeout: float | None = None) -> None:
        self.place = place
        self.roster = Roster()
        world = {role: len(a) for role, a in place.cluster.items() if role != OBSERVER and a}
        self.order = Order(world=world, stall_timeout=stall_timeout)
        self._outbox = outbox
        self._outside: set[str] = set()
        self._told: set[int] = set()
        self._configs: dict[str, Mapping[str, Any]] = {}

    @property
    def seats(self) -> list[str]:
        """Return the seats that take part in the next start, by role."""
        without = self.order.without - {self.place.seat}
        return [seat for seat in self.all_seats if seat not in without]

    @property
    def all_seats(self) -> list[str]:
        """Return those too that can't be had for now."""
        return seats_of(self.order.world or {})

    @property
    def missing(self) -> list[str]:
        """Return the seats that the start barrier waits for."""
        return [seat for seat in self.seats if self.ready(seat) is None]

    @property
    def is_quiet(self) -> bool:
        """Tell whether nothing of an earlier start runs any more, but where a newer pod takes over."""
        return all(member.is_quiet for member in self.roster.trainees if self.is_wanted(member))

    def complete(self) -> list[Member] | None:
        """Return everybody who takes part in the next start, or None while somebody is missing."""
        seats = self.seats
        if len(self.roster) < len(seats) or not self.is_quiet:
            return None
        members = [self.ready(seat) for seat in seats]
        ready = [member for member in members if member is not None]
        return ready if len(ready) == len(members) else None

    def is_wanted(self, member: Member) -> bool:
        """Tell whether no newer pod is to take this one's place."""
        return member.incarnation >= self.order.incarnations.get(member.seat, 0)

    def obey(self, order: Order) -> None:
        """Take the controller's order; seats that it leaves out are sent away once nothing runs there."""
        before = set(self.all_seats)
        self.order = replace(order, world=order.world or self.order.world)
        self._outside = (self._outside | before) - set(self.all_seats)

    def admit(self, join: Join, now: float, ledger: Ledger) -> Member | None:
        """Let somebody in, or send them away whose seat a newer pod has, or we ourselves."""
        before = self.roster.get(join.seat)
        replaced = (before.link, before.incarnation) if before is not None else (None, 0)
        is_ours = join.seat == self.place.seat and join.link != self.place.link
        member = None if is_ours else self.roster.admit(join, now)
        if member is None:
            self.dismiss(join.link, ledger)
            return None
        if replaced[0] is not None and replaced[1] < join.incarnation:
            self.dismiss(replaced[0], ledger)
        elif replaced[0] is not None:
            self._outbox.hang_up(replaced[0])
        place = self.place
        self._outbox.say(join.link, welcome(place.beat_seconds, place.lost_seconds, place.incarnation))
        return member

    def dismiss(self, link: int, ledger: Ledger, code: int = int(ExitCode.PEER_LOST)) -> None:
        """Send somebody away."""
        self._outbox.say(link, end(code, "dismissed", None, ledger))
        self._outbox.hang_up(link)

    def dismiss_outsiders(self, ledger: Ledger) -> None:
        """Send away those whose seats are no more, once nothing runs there."""
        for seat in sorted(self._outside):
            member = self.roster.get(seat)
            if member is not None and (member.link is None or member.is_quiet):
                self.roster.drop(member)
                if member.link is not None:
                    self.dismiss(member.link, ledger, int(ExitCode.SUCCESS))

    def stop(self, members: Sequence[Member], attempt: int, *, graceful: bool, stacks: bool = False) -> None:
        """Have these members' training processes stopped, where any are left; each is told once."""
        for member in members:
            if member.link is not None and not member.is_quiet and member.link not in self._told:
                self._told.add(member.link)
                self._outbox.say(member.link, stop(attempt, graceful=graceful, stacks=stacks))

    def begin(self, members: Sequence[Member], number: int, ledger: Ledger, now: float) -> None:
        """Have everybody start; TF_CONFIG gives each its place among those who are there."""
        self._told.clear()
        cluster = self._cluster(members)
        self._configs.clear()
        places: dict[str, int] = {}
        for member in members:
            role = member.seat.rpartition("-")[0]
            task = {"type": role, "index": places.get(role, 0)}
            places[role] = places.get(role, 0) + 1
            self._configs[member.seat] = {"cluster": cluster, "task": task}
            self._begin(member, number, number, ledger, now)

    def begin_alone(self, member: Member, number: int, attempt: int, ledger: Ledger, now: float) -> None:
        """Have a ready one start, as `number`, in its place among those who train already in `attempt`."""
        assert member.link is not None  # noqa: S101 - it is ready
        self._told.discard(member.link)
        self._begin(member, number, attempt, ledger, now)

    def _begin(self, member: Member, number: int, attempt: int, ledger: Ledger, now: float) -> None:
        assert member.link is not None  # noqa: S101 - they are ready
        epoch = f"{self.place.incarnation}.{attempt}"
        member.begin(number, now)
        self._outbox.say(member.link, start(number, epoch, self._configs[member.seat], ledger))

    def _cluster(self, members: Sequence[Member]) -> dict[str, list[str]]:
        """Return TF_CONFIG's cluster, its roles in order; the evaluator keeps the address it has there.

        So does who is started again alone: the others must find a new pod of that seat by the same name.
        """
        known = self.place.cluster
        cluster: dict[str, list[str]] = {role: [] for role in known}
        alone = lone_seats([member.seat for member in members])
        for member in members:
            role, _, index = member.seat.rpartition("-")
            named = known.get(role, ())
            is_named = member.seat in alone and int(index) < len(named)
            cluster.setdefault(role, []).append(named[int(index)] if is_named else member.address)
        if OBSERVER in known:
            cluster[OBSERVER] = list(known[OBSERVER])
        return {role: addresses for role, addresses in cluster.items() if addresses}

    def ready(self, seat: str) -> Member | None:
        """Return the seat's agent if a training process can be started there."""
        return self.roster.ready(seat, self.order.incarnations.get(seat, 0))
