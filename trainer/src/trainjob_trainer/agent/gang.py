"""When training starts, stops, starts again and ends: the leading agent's rules.

A state machine without input, output or clock: `handle` takes one event and the time, and returns what is to
be said. Its phases are `meeting` (the start barrier), `running`, `stopping`, and `finished` or `failed`.
Whatever an event was, what follows is found by looking at the members as they are: one that comes twice
changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainjob_trainer.agent.attempt import Attempt, find_trouble, judge_alone, start_alone
from trainjob_trainer.agent.budget import Budget, Ledger, furthest
from trainjob_trainer.agent.failure import (
    PEER_LOST,
    PREEMPTED,
    STALLED,
    UNREACHABLE,
    Failure,
    code_of,
    is_charged,
    is_permanent,
    reason_of,
)
from trainjob_trainer.agent.messages import (
    FINISHED,
    IDLE,
    RUNNING,
    STOPPING,
    Beat,
    Effect,
    Event,
    Failed,
    Join,
    Leaving,
    Lost,
    Order,
    Tick,
    count_roles,
    farewell,
)
from trainjob_trainer.agent.rendezvous import ABSENT, Member, Outbox, Place, Rendezvous, is_observer
from trainjob_trainer.agent.wire import TAG_BYTES, encode, largest_report

# Which failure started it, among those that every failure sets off in its peers.


def culprit(failures: Sequence[Failure], members: Iterable[Member]) -> Failure:
    """Return the failure to blame: the earliest that says more than that a peer was lost.

    `failures` are one attempt's, in the order in which they were told. A process that has reported why it
    fails may take many seconds to end, while its peers have gone already.
    """
    told = min(failures, key=lambda failure: (failure.reason == PEER_LOST, failure.reason == PREEMPTED))
    if not told.is_cascade:
        return told
    dying = (_announced(member, told.attempt) for member in members if member.child == RUNNING)
    return next((failure for failure in dying if failure is not None), told)


def _announced(member: Member, attempt: int) -> Failure | None:
    report = member.report or {}
    error = report.get("error")
    if report.get("state") != "failed" or not isinstance(error, dict):
        return None
    if error.get("reason") in (PEER_LOST, PREEMPTED):
        return None
    code = code_of(str(error.get("reason")))
    return Failure(
        seat=member.seat,
        pod=member.pod,
        incarnation=member.incarnation,
        attempt=attempt,
        reason=reason_of(code),
        exit_code=code,
        message=str(error.get("message") or ""),
        step=member.step(),
        charged=is_charged(code),
        permanent=is_permanent(code),
    )


MEETING = "meeting"
FAILED = "failed"

ORDER_SECONDS = 120.0
"""How long after the newest order an older one isn't taken.

Controllers repeat their orders every few seconds. When the newest one is silent, it was rolled back, its
Lease was deleted, or there is no election any more: training must not be without orders for good.
"""


class Gang:
    """The leading agent's view of all agents.

    `max_restarts`, of charged ones, and `stall_timeout`, in seconds or None, hold until an order differs.
    """

    def __init__(
        self, place: Place, ledger: Ledger, max_restarts: int, stall_timeout: float | None, now: float
    ) -> None:
        self._outbox = Outbox()
        self.place = place
        self.meeting = Rendezvous(place, self._outbox, stall_timeout)
        self.budget = Budget(ledger, max_restarts, now)
        self.phase = MEETING
        self.began = now
        self.since = now
        self.attempt: Attempt | None = None
        self.failure: Failure | None = None
        self._ordered_at = now

    @property
    def is_over(self) -> bool:
        """Tell whether nothing is started any more."""
        return self.phase in (FINISHED, FAILED)

    @property
    def wake_at(self) -> float | None:
        """Return when something is due without any event."""
        if self.phase == MEETING:
            return self.budget.not_before
        if self.attempt is None or self.phase != RUNNING:
            return None
        due = [when for when in (self.attempt.judged_at, self.attempt.alone.wake_at) if when is not None]
        return min(due, default=None)

    def takes(self, order: Order, now: float) -> bool:
        """Tell whether this order is none of a controller that has a successor, or of an earlier spec."""
        return order.version >= self.meeting.order.version or now - self._ordered_at >= ORDER_SECONDS

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take an event and return what is to be said, in order; `now` is of a clock that never goes back."""
        if self._hear(event, now):
            before = ""
            while before != self.phase:
                before = self.phase
                self._go_on(now)
        return self._outbox.take()

    def _hear(self, event: Event, now: float) -> bool:
        """Take note of an event; tell whether anything can follow from it."""
        if isinstance(event, Join):
            self._join(event, now)
        elif isinstance(event, Order):
            self._obey(event, now)
        elif not isinstance(event, Tick):
            member = self.meeting.roster.on(event.link)
            return member is not None and self._hear_member(member, event, now)
        return True

    def _hear_member(self, member: Member, event: Beat | Failed | Leaving | Lost, now: float) -> bool:
        if isinstance(event, Beat):
            return self._beat(member, event, now)
        if isinstance(event, Failed):
            self._failed(member, event, now)
        elif isinstance(event, Leaving):
            member.leaving = True
        else:
            self.meeting.roster.part(member, now)
        return True

    def _join(self, join: Join, now: float) -> None:
        budget = self.budget
        if not is_observer(join.seat):
            budget.ledger = budget.ledger.merge(join.ledger).at_least(join.attempt)
        member = self.meeting.admit(join, now, budget.ledger)
        if member is None:
            return
        if not self.is_over:
            budget.came_back(join.pod)
        elif not member.is_observer:  # an evaluator still has to score what training has left
            self._tell_end(member)

    def _obey(self, order: Order, now: float) -> None:
        if not self.takes(order, now):
            return
        self._ordered_at = now
        if not self.is_over:
            self.meeting.obey(order)
        self.budget.ledger = self.budget.ledger.merge(order.ledger)
        if order.max_restarts is not None:
            self.budget.max_restarts = order.max_restarts

    def _beat(self, member: Member, beat: Beat, now: float) -> bool:
        """Take note of it; most beats change nothing, and there are as many as there are members."""
        has_changed = member.hear(beat, now)
        attempt = self.attempt
        if attempt is not None and self.phase == RUNNING and attempt.takes_part(member):
            attempt.observe(member, now)
            self.budget.ledger = self.budget.ledger.progressed(
                member.step(), member.step("checkpointStep"), member.step("resumedFrom")
            )
        return has_changed

    def _failed(self, member: Member, event: Failed, now: float) -> None:
        attempt = self.attempt
        if event.attempt < member.attempt:
            return
        member.become(IDLE, now)
        if attempt is not None and self.phase == RUNNING and attempt.takes_part(member):
            if member.seat in attempt.alone:
                self._fail_alone(attempt, member, event.failure, now)
            else:
                attempt.fail(event.failure, now)
        else:
            self._add_log(event.failure)

    def _go_on(self, now: float) -> None:
        if self.phase == MEETING:
            self.meeting.dismiss_outsiders(self.budget.ledger)
            self._meet(now)
        elif self.phase == RUNNING:
            self._watch(now)
        elif self.phase == STOPPING:
            self._stop_all(now)

    def _meet(self, now: float) -> None:
        """Start once everybody is there and the back-off is over; stop what runs from an earlier time."""
        ledger = self.budget.ledger
        self.meeting.stop(self.meeting.roster.trainees, ledger.attempt, graceful=False)
        members = self.meeting.complete()
        if members is None or now < self.budget.not_before:
            return
        number = max(ledger.attempt + 1, *(member.incarnation for member in members))
        self.budget.ledger = ledger.at_least(number)
        self.attempt = Attempt(number, self.meeting.seats, now, {m.seat: m.pod for m in members})
        self.meeting.begin(members, number, self.budget.ledger, now)
        self._become(RUNNING, now)

    def _watch(self, now: float) -> None:
        """Look at the attempt that runs: is it done, has it failed, must it be stopped?"""
        attempt = self.attempt
        assert attempt is not None  # noqa: S101 - it runs
        if attempt.is_finished:
            self._end(FINISHED, None, now)
        elif attempt.judged_at is not None and attempt.judged_at <= now:
            self._judge(attempt, now)
        else:
            self._look_around(attempt, now)

    def _look_around(self, attempt: Attempt, now: float) -> None:
        trouble = find_trouble(attempt, self.meeting, self.meeting.order.stall_timeout, now)
        if trouble is None:
            if attempt.differs(self.meeting.seats, self.meeting.all_seats):
                self._stop(attempt, now, graceful=True)
            else:
                unix_time = now + self.place.unix_time
                returned = start_alone(attempt, self.meeting, self.budget, now, unix_time)
                self.failure = returned or self.failure
        elif trouble.member.seat in attempt.alone:
            self.meeting.stop([trouble.member], attempt.latest, graceful=False, stacks=True)
            failure = trouble.as_failure(trouble.member.attempt, now + self.place.unix_time)
            self._fail_alone(attempt, trouble.member, failure, now)
        elif trouble.reason == STALLED:
            attempt.stacks = True
            attempt.fail(trouble.as_failure(attempt.number, now + self.place.unix_time), now)
            self._judge(attempt, now)
        else:
            self.failure = trouble.as_failure(attempt.number, now + self.place.unix_time)
            self._stop(attempt, now, graceful=trouble.may_save)
            if trouble.reason == UNREACHABLE:
                self.budget.interrupted(now)
                self._count_loss(trouble.member, attempt.pods[trouble.member.seat])

    def _fail_alone(self, attempt: Attempt, member: Member, failure: Failure, now: float) -> None:
        """Have a process started again that the others can do without meanwhile, or give up."""
        if attempt.alone.is_counted(member.seat):
            self._add_log(failure)
            return
        verdict = judge_alone(attempt, self.meeting.roster, self.budget, member, failure, now)
        self.failure = verdict.failure
        if verdict.give_up:
            self._end(FAILED, verdict.failure, now)

    def _add_log(self, failure: Failure) -> None:
        if self.failure is not None:
            self.failure = self.failure.with_log_of(failure)

    def _count_loss(self, member: Member, pod: str) -> None:
        self.budget.went_away(pod)
        if member.link is not None and self.meeting.is_wanted(member):
            self.budget.came_back(member.pod)

    def _judge(self, attempt: Attempt, now: float) -> None:
        failure = culprit(attempt.failures, attempt.trainees(self.meeting.roster))
        step = self._stop(attempt, now, graceful=False)
        if failure.step is None:
            failure = replace(failure, step=step)
        self.budget.ledger = self.budget.ledger.cut_off(failure.step)
        verdict = self.budget.judge(failure, attempt.started, now)
        self.failure = verdict.failure
        if verdict.give_up:
            self._end(FAILED, verdict.failure, now)

    def _stop(self, attempt: Attempt, now: float, *, graceful: bool) -> int | None:
        """Stop an attempt, and return how far it has come."""
        step = furthest(member.step() for member in attempt.trainees(self.meeting.roster))
        self.budget.ledger = self.budget.ledger.cut_off(step)
        attempt.graceful = graceful
        self._become(STOPPING, now)
        return step

    def _stop_all(self, now: float) -> None:
        """Stop everybody, the writer before the others if it may save; then meet again."""
        attempt = self.attempt
        assert attempt is not None  # noqa: S101 - it is being stopped
        trainees = self.meeting.roster.trainees
        writer = [m for m in trainees if m.seat == self.place.seat and not m.is_quiet]
        told = writer if attempt.graceful and writer else trainees
        self.meeting.stop(told, attempt.latest, graceful=attempt.graceful, stacks=attempt.stacks)
        if self.meeting.is_quiet:
            self._become(MEETING, now)

    def _end(self, phase: str, failure: Failure | None, now: float) -> None:
        self.failure = failure or self.failure
        self._become(phase, now)
        for member in self.meeting.roster.trainees:
            self._tell_end(member)

    def _tell_end(self, member: Member) -> None:
        if member.link is not None:
            message = farewell(member.pod, self.failure if self.phase == FAILED else None, self.budget.ledger)
            self._outbox.say(member.link, message)

    def _become(self, phase: str, now: float) -> None:
        self.phase, self.since = phase, now


# What the leading agent tells the controller.


_OWN_SHARE = ("metrics", "evaluation", "error")
"""The writer's are the job's; everybody else's are only large."""


def build_fitting_report(gang: Gang, now: float) -> dict[str, Any]:
    """Return the report with as much of it as the controller takes."""
    report = build_report(gang, now)
    pods = sum(1 for _ in gang.meeting.roster)
    fits = len(encode(report)) + TAG_BYTES <= largest_report(len(report["members"]), pods)
    return report if fits else build_report(gang, now, whole=False)


def build_report(gang: Gang, now: float, *, whole: bool = True) -> dict[str, Any]:
    """Return the report, small enough for a frame with many hundreds of seats.

    Unless `whole`, it has the progress of the writer and the evaluator alone.
    """
    running = gang.attempt is not None and gang.phase in ("running", "stopping")
    active = gang.attempt.seats if gang.attempt is not None and running else gang.meeting.seats
    seats = dict.fromkeys((*active, *gang.meeting.all_seats))
    seats.update(dict.fromkeys(member.seat for member in gang.meeting.roster))
    writer = gang.place.seat
    return {
        "type": "report",
        "role": "leader",
        "phase": gang.phase,
        "phaseSeconds": round(now - gang.since, 3),
        "attempt": gang.attempt.number if gang.attempt else 0,
        "world": count_roles(active),
        "ledger": gang.budget.ledger.to_json(),
        "failure": gang.failure.to_json() if gang.failure else None,
        "members": {
            seat: _describe(gang.meeting.roster.get(seat), now, writer=writer, whole=whole, began=gang.began)
            for seat in seats
        },
    }


def _describe(member: Member | None, now: float, *, writer: str, whole: bool, began: float) -> dict[str, Any]:
    if member is None:
        seconds = round(now - began, 3)
        return {"pod": "", "incarnation": 0, "state": ABSENT, "seconds": seconds, "report": None}
    is_full = member.seat == writer or member.is_observer
    report: Mapping[str, Any] | None = member.report
    if report is not None and not is_full:
        report = {key: value for key, value in report.items() if key not in _OWN_SHARE} if whole else None
    return {
        "pod": member.pod,
        "incarnation": member.incarnation,
        "state": member.state,
        "seconds": round(now - member.since, 3),
        "report": report,
    }
