"""One start of training, from the barrier to its end, and what keeps it from going on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trainjob_trainer.agent.budget import Budget, Verdict, furthest
from trainjob_trainer.agent.failure import PREEMPTED, STALLED, UNREACHABLE, Failure
from trainjob_trainer.agent.messages import FINISHED, IDLE, count_roles
from trainjob_trainer.agent.rendezvous import LoneSeats, Member, Rendezvous, Roster
from trainjob_trainer.agent.stall import Rank, StallWatch, blame

CULPRIT_GRACE = 0.5
"""Seconds that failures which follow from another one wait for it to be told."""


@dataclass
class Attempt:
    """What the leading agent knows of it.

    Attributes:
        number: 1 for the first; each is higher than all before.
        seats: who takes part, by role.
        pods: each seat's, that of its latest start alone included.
        done: seats whose training process has ended well.
        failures: in the order in which they were told.
        judged_at: when the first failure is looked for among them; None while there is none.
        graceful: once it is being stopped: whether it may save first.
        stacks: whether training processes show first where they stand.
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
        """Tell whether it has to be stopped so that `seats`, the available ones of `all_seats`, take part."""
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


# What keeps an attempt from going on though no training process has ended badly.


@dataclass(frozen=True)
class Trouble:
    """Somebody who holds the others up; the reason is `Unreachable`, `Preempted` or `Stalled`."""

    member: Member
    reason: str
    message: str

    @property
    def may_save(self) -> bool:
        """Whether training still runs: who leaves, or is about to be replaced, has time for a checkpoint."""
        is_at_work = self.member.link is not None and not self.member.is_quiet
        return self.reason == PREEMPTED or (self.reason == UNREACHABLE and is_at_work)

    def as_failure(self, attempt: int, time: float) -> Failure:
        """Return it as an attempt's failure at a Unix time; only a stall is the user's program's doing."""
        member = self.member
        return Failure(
            member.seat,
            member.pod,
            member.incarnation,
            attempt,
            self.reason,
            message=self.message,
            step=member.step(),
            charged=self.reason == STALLED,
            time=time,
        )


def find_trouble(attempt: Attempt, meeting: Rendezvous, limit: float | None, now: float) -> Trouble | None:
    """Return the first trouble: somebody is gone or asked to leave, or nothing moves for `limit` seconds."""
    members = {seat: meeting.roster.get(seat) for seat in attempt.seats if seat not in attempt.done}
    present = {seat: member for seat, member in members.items() if member is not None}
    told = {failure.seat for failure in attempt.failures}
    needed = [member for seat, member in present.items() if seat not in attempt.alone]
    for member in needed:
        absence = _absence(member, attempt, meeting, told)
        if absence:
            return Trouble(member, UNREACHABLE, absence)
    for member in needed:
        if member.leaving:
            return Trouble(member, PREEMPTED, "was asked to stop")
    return _stall(attempt, present, limit, now)


def _absence(member: Member, attempt: Attempt, meeting: Rendezvous, told: set[str]) -> str:
    """Return why somebody no longer takes part, or nothing."""
    if member.link is None:
        return "can't be reached"
    if not meeting.is_wanted(member):
        return "is being replaced"
    if member.attempt != attempt.number:
        return "has come back without its training process"
    return "has no training process" if member.is_quiet and member.seat not in told else ""


def _stall(
    attempt: Attempt, present: Mapping[str, Member], limit: float | None, now: float
) -> Trouble | None:
    still = [
        seat for seat in present if seat in attempt.watches and attempt.watches[seat].stalled(now, limit)
    ]
    if not still or attempt.failures:
        return None
    at_work = {seat: m for seat, m in present.items() if m.link is not None and not m.is_quiet}
    if any(_is_waited_for(attempt, member, limit, now) for member in at_work.values()):
        return None
    ranks = [
        Rank(s, m.stopped, m.age, m.step(), reported=s in still, takes_steps=attempt.takes_steps(s))
        for s, m in at_work.items()
    ]
    member = present[blame(ranks)]
    why = f"no progress for {limit:g} s" + ("; its process is stopped" if member.stopped else "")
    return Trouble(member, STALLED, why)


def _is_waited_for(attempt: Attempt, member: Member, limit: float | None, now: float) -> bool:
    """Tell whether the others stand still with good reason: this one saves, say, and isn't frozen."""
    watch = attempt.watches.get(member.seat)
    is_frozen = member.stopped or member.age is None or (limit is not None and member.age >= limit)
    return watch is not None and not is_frozen and watch.is_at_long_work(now, limit)


# A worker of a parameter-server job is started again alone: when, and what it costs.


_SERVING = "training"
"""What a worker reports once the chief can reach it."""


def judge_alone(
    attempt: Attempt, roster: Roster, budget: Budget, member: Member, failure: Failure, now: float
) -> Verdict:
    """Decide whether a process is started again, count that restart in `budget`, and note when it is due.

    The step of such a failure is the one that training had come to by then, so that a worker which serves and
    is killed now and then is not taken for one that fails at the same place each time. One that fails before
    it serves has no step: that is the same failure each time.
    """
    step = furthest(one.step() for one in attempt.trainees(roster))
    has_served = (member.report or {}).get("state") == _SERVING
    budget.ledger = budget.ledger.cut_off(step)
    told = replace(failure, step=step if has_served else None, alone=True)
    verdict = budget.judge(told, attempt.alone.started(member.seat), now)
    attempt.watches.clear()  # the chief may have waited for it
    if verdict.give_up:
        return replace(verdict, failure=replace(verdict.failure, alone=False))
    attempt.alone.failed(member.seat, now)
    return verdict


def start_alone(
    attempt: Attempt, meeting: Rendezvous, budget: Budget, now: float, unix_time: float
) -> Failure | None:
    """Start those again that have failed, or have come back, while the others go on.

    Restarts that nobody else counts are counted in `budget`; returns why one was needed, if one was counted.
    """
    returned = None
    for seat in sorted(attempt.alone.seats):
        member = meeting.ready(seat)
        if member is None or member.child != IDLE or not attempt.alone.is_due(seat, now):
            continue
        if not attempt.alone.is_counted(seat) and member.pod == attempt.pods[seat]:
            returned = _out_of_reach(attempt, member, unix_time)
            budget.ledger = budget.ledger.restarted(charged=False)
        number = budget.ledger.attempt + 1
        budget.ledger = budget.ledger.at_least(number)
        attempt.alone.begin(seat, number, now)
        attempt.pods[seat] = member.pod
        meeting.begin_alone(member, number, attempt.number, budget.ledger, now)
    return returned


def _out_of_reach(attempt: Attempt, member: Member, unix_time: float) -> Failure:
    """Return the failure of one whose connection had ended: of a new pod the controller knows more."""
    number = attempt.alone.number(member.seat, attempt.number)
    return replace(
        Trouble(member, UNREACHABLE, "couldn't be reached").as_failure(number, unix_time), alone=True
    )
