"""The leading agent's rules: when the worker group starts, stops, restarts and ends.

A state machine without input, output or clock: `handle` takes one event and the time, and returns the
messages to send. Its phases are `meeting` (the start barrier), `running`, `stopping`, and `finished` or
`failed`. The next phase depends on the members' state alone, so a repeated event changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainjob_trainer.agent.attempt import WAITS_FOR_ENDED, Attempt, find_trouble, judge_alone, start_alone
from trainjob_trainer.agent.budget import Budget
from trainjob_trainer.agent.messages import (
    Beat,
    Effect,
    Event,
    Failed,
    Join,
    Leaving,
    Lost,
    Send,
    Tick,
    count_roles,
    farewell,
)
from trainjob_trainer.agent.rendezvous import LeaderSettings, Member, Rendezvous, is_observer
from trainjob_trainer.contract.exits import EXITS, UNCAUGHT, meaning_of
from trainjob_trainer.contract.reports import (
    ABSENT,
    FAILED,
    FINISHED,
    IDLE,
    LONGEST_NOTICE,
    MEETING,
    MOST_NOTICES,
    OUT_OF_MEMORY,
    PEER_LOST,
    PREEMPTED,
    RUNNING,
    STALLED,
    STOPPING,
    UNREACHABLE,
    Failure,
    shorten,
)
from trainjob_trainer.contract.restarts import RestartCounts, furthest
from trainjob_trainer.contract.targets import Target
from trainjob_trainer.contract.wire import TAG_BYTES, encode, largest_report

# The first failure: each failure causes others in its peers.


def find_first_failure(failures: Sequence[Failure], members: Iterable[Member]) -> Failure:
    """Return the failure to blame: the earliest with another reason than the loss of a peer.

    `failures` are one attempt's, in the order of their reports. A process that has reported its error may
    take many seconds to end, after its peers have ended.
    """
    earliest = min(failures, key=lambda failure: (failure.reason == PEER_LOST, failure.reason == PREEMPTED))
    if not earliest.is_cascade:
        return earliest
    dying = (_reported_failure(member, earliest.attempt) for member in members if member.child == RUNNING)
    return next((failure for failure in dying if failure is not None), earliest)


def _reported_failure(member: Member, attempt: int) -> Failure | None:
    report = member.report or {}
    error = report.get("error")
    if report.get("state") != "failed" or not isinstance(error, dict):
        return None
    if error.get("reason") in (PEER_LOST, PREEMPTED):
        return None
    code = next((code for code, known in EXITS.items() if known.name == error.get("reason")), UNCAUGHT)
    meaning = meaning_of(code)
    return Failure(
        replica=member.replica,
        pod=member.pod,
        incarnation=member.incarnation,
        attempt=attempt,
        reason=meaning.name,
        exit_code=code,
        message=str(error.get("message") or ""),
        step=member.step(),
        counted=meaning.counted,
        permanent=meaning.permanent,
    )


TARGET_SECONDS = 120.0
"""Seconds after the newest target in which an older one is rejected.

Controllers repeat their targets every few seconds. If the newest one is silent, it was rolled back, its
Lease was deleted, or election is off; then the group must follow the older one.
"""


class WorkerGroup:
    """The leading agent's view of all agents; `first` applies until the controller sends a target."""

    def __init__(
        self,
        settings: LeaderSettings,
        counts: RestartCounts,
        first: Target,
        now: float,
    ) -> None:
        self.settings = settings
        self.meeting = Rendezvous(settings, first)
        self.budget = Budget(counts, first.max_restarts or 0, now)
        self.phase = MEETING
        self.began = now
        self.since = now
        self.attempt: Attempt | None = None
        self.failure: Failure | None = None
        self.notices: list[str] = []
        self._target_at = now

    @property
    def is_over(self) -> bool:
        """Return whether training has ended for good."""
        return self.phase in (FINISHED, FAILED)

    @property
    def is_replaced(self) -> bool:
        """Return whether a newer pod is to lead."""
        own = self.settings
        return self.meeting.target.incarnations.get(own.replica, 0) > own.incarnation

    @property
    def wake_at(self) -> float | None:
        """Return when the next action is due without an event."""
        if self.phase == MEETING:
            return self.budget.not_before
        if self.attempt is None or self.phase != RUNNING:
            return None
        due = [when for when in (self.attempt.judged_at, self.attempt.alone.wake_at) if when is not None]
        return min(due, default=None)

    def accepts(self, target: Target, now: float) -> bool:
        """Return whether a target is from neither a deposed controller nor an earlier spec."""
        return target.version >= self.meeting.target.version or now - self._target_at >= TARGET_SECONDS

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Apply an event and return the messages to send, in order; `now` is from a monotonic clock."""
        if self._apply(event, now):
            before = ""
            while before != self.phase:
                before = self.phase
                self._advance(now)
        effects, self.meeting.outbox = self.meeting.outbox, []
        return effects

    def _apply(self, event: Event, now: float) -> bool:
        """Record an event; return whether the phase may change."""
        if isinstance(event, Join):
            self._join(event, now)
        elif isinstance(event, Target):
            self._set_target(event, now)
        elif not isinstance(event, Tick):
            member = self.meeting.roster.on(event.link)
            return member is not None and self._apply_member(member, event, now)
        return True

    def _apply_member(self, member: Member, event: Beat | Failed | Leaving | Lost, now: float) -> bool:
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
        if not is_observer(join.replica):
            budget.counts = budget.counts.merge(join.counts).at_least(join.attempt)
        member = self.meeting.admit(join, now, budget.counts)
        if member is None:
            return
        if not self.is_over:
            budget.came_back(join.pod)
        elif not member.is_observer:  # an evaluator still has to score the last checkpoint
            self._send_end(member)

    def _set_target(self, target: Target, now: float) -> None:
        if not self.accepts(target, now):
            return
        self._target_at = now
        if not self.is_over:
            self.meeting.set_target(target)
        self.budget.counts = self.budget.counts.merge(target.counts)
        if target.max_restarts is not None:
            self.budget.max_restarts = target.max_restarts

    def _beat(self, member: Member, beat: Beat, now: float) -> bool:
        """Record it; return whether the phase may change, as most of the many beats change nothing."""
        has_changed = member.update(beat, now)
        said = (beat.report or {}).get("notices")
        if isinstance(said, list):  # the report of the next start lacks them
            cut = (shorten(str(line), LONGEST_NOTICE) for line in said)
            self.notices = list(dict.fromkeys([*self.notices, *cut]))[:MOST_NOTICES]
        attempt = self.attempt
        if attempt is not None and self.phase == RUNNING and attempt.takes_part(member):
            attempt.observe(member, now)
            self.budget.counts = self.budget.counts.progressed(
                member.step(), member.step("checkpointStep"), member.step("resumedFrom")
            )
        return has_changed

    def _failed(self, member: Member, event: Failed, now: float) -> None:
        attempt, failure = self.attempt, event.failure
        if event.attempt < member.attempt:
            return
        grows = self.meeting.target.memory_grows and member.replica.startswith("worker-")
        if failure.reason == OUT_OF_MEMORY and grows:
            failure = replace(failure, counted=False)
        member.become(IDLE, now)
        if attempt is not None and self.phase == RUNNING and attempt.takes_part(member):
            if self.settings.replica in attempt.done:
                attempt.done.add(member.replica)  # training has finished with the writer's process
            elif member.replica in attempt.alone:
                self._fail_alone(attempt, member, failure, now)
            else:
                attempt.fail(failure, now)
        else:
            self._add_log(failure)

    def _advance(self, now: float) -> None:
        if self.phase == MEETING:
            self.meeting.dismiss_outsiders(self.budget.counts)
            self._meet(now)
        elif self.phase == RUNNING:
            self._watch(now)
        elif self.phase == STOPPING:
            self._stop_all(now)

    def _meet(self, now: float) -> None:
        """Start once all are present and the back-off is over; stop processes of an earlier start."""
        counts = self.budget.counts
        self.meeting.stop(self.meeting.roster.trainees, counts.attempt, graceful=False)
        members = self.meeting.complete()
        if members is None or now < self.budget.not_before:
            return
        number = max(counts.attempt + 1, *(member.incarnation for member in members))
        self.budget.counts = counts.at_least(number)
        self.attempt = Attempt(number, self.meeting.replicas, now, {m.replica: m.pod for m in members})
        self.meeting.begin(members, number, self.budget.counts, now)
        self._become(RUNNING, now)

    def _watch(self, now: float) -> None:
        """End, judge or check the running attempt."""
        attempt = self.attempt
        assert attempt is not None  # noqa: S101 - it runs
        if attempt.is_finished:
            self._end(FINISHED, None, now)
        elif attempt.judged_at is not None and attempt.judged_at <= now:
            self._judge(attempt, now)
        else:
            self._check_members(attempt, now)

    def _check_members(self, attempt: Attempt, now: float) -> None:
        trouble = find_trouble(attempt, self.meeting, self.meeting.target.stall_timeout, now)
        if trouble is not None and self.settings.replica in attempt.done:
            attempt.done.add(trouble.member.replica)
        elif trouble is None:
            if attempt.differs(self.meeting.replicas, self.meeting.all_replicas):
                self._stop(attempt, now, graceful=True)
            else:
                unix_time = now + self.settings.unix_time
                returned = start_alone(attempt, self.meeting, self.budget, now, unix_time)
                self.failure = returned or self.failure
        elif trouble.member.replica in attempt.alone:
            self.meeting.stop([trouble.member], attempt.latest, graceful=False, stacks=True)
            failure = trouble.as_failure(trouble.member.attempt, now + self.settings.unix_time)
            self._fail_alone(attempt, trouble.member, failure, now)
        elif trouble.reason in (STALLED, WAITS_FOR_ENDED):
            attempt.stacks = True
            attempt.fail(trouble.as_failure(attempt.number, now + self.settings.unix_time), now)
            self._judge(attempt, now)
        else:
            self.failure = trouble.as_failure(attempt.number, now + self.settings.unix_time)
            self._stop(attempt, now, graceful=trouble.may_save)
            if trouble.reason == UNREACHABLE:
                self.budget.interrupted(attempt.pods[trouble.member.replica], now)
                if trouble.member.link is not None and self.meeting.is_wanted(trouble.member):
                    self.budget.came_back(trouble.member.pod)

    def _fail_alone(self, attempt: Attempt, member: Member, failure: Failure, now: float) -> None:
        """Restart a process that the others can do without, or give up."""
        if attempt.alone.is_pending(member.replica):
            self._add_log(failure)
            return
        verdict = judge_alone(attempt, self.meeting.roster, self.budget, member, failure, now)
        self.failure = verdict.failure
        if verdict.give_up:
            self._end(FAILED, verdict.failure, now)

    def _add_log(self, failure: Failure) -> None:
        if self.failure is not None:
            self.failure = self.failure.with_log_of(failure)

    def _judge(self, attempt: Attempt, now: float) -> None:
        trainees = attempt.trainees(self.meeting.roster)
        failure = find_first_failure(attempt.failures, trainees)
        # The controller may first hear of the failure from the next start, which hasn't reported any yet.
        known = (member.step(key) for member in trainees for key in ("checkpointStep", "resumedFrom"))
        failure = replace(failure, checkpoint_step=furthest(known))
        step = self._stop(attempt, now, graceful=False)
        if failure.step is None:
            failure = replace(failure, step=step)
        self.budget.counts = self.budget.counts.cut_off(failure.step)
        verdict = self.budget.judge(failure, attempt.started, now)
        self.failure = verdict.failure
        if verdict.give_up:
            self._end(FAILED, verdict.failure, now)

    def _stop(self, attempt: Attempt, now: float, *, graceful: bool) -> int | None:
        """Stop an attempt and return its furthest step."""
        step = furthest(member.step() for member in attempt.trainees(self.meeting.roster))
        self.budget.counts = self.budget.counts.cut_off(step)
        attempt.graceful = graceful
        self._become(STOPPING, now)
        return step

    def _stop_all(self, now: float) -> None:
        """Stop all members, the writer before the others if it may save; then meet again."""
        attempt = self.attempt
        assert attempt is not None  # noqa: S101 - it is being stopped
        trainees = self.meeting.roster.trainees
        writer = [m for m in trainees if m.replica == self.settings.replica and not m.is_quiet]
        first = writer if attempt.graceful and writer else trainees
        self.meeting.stop(first, attempt.latest, graceful=attempt.graceful, stacks=attempt.stacks)
        if self.meeting.is_quiet:
            self._become(MEETING, now)

    def _end(self, phase: str, failure: Failure | None, now: float) -> None:
        self.failure = failure or self.failure
        self._become(phase, now)
        for member in self.meeting.roster.trainees:
            self._send_end(member)

    def _send_end(self, member: Member) -> None:
        if member.link is not None:
            message = farewell(member.pod, self.failure if self.phase == FAILED else None, self.budget.counts)
            self.meeting.outbox.append(Send(member.link, message))

    def _become(self, phase: str, now: float) -> None:
        self.phase, self.since = phase, now


# The agent report: the leading agent's answer to the controller.


_OWN_SHARE = ("metrics", "evaluation", "curves", "error", "notices")
"""The writer's are the job's; those of the others only add size."""


def build_fitting_report(group: WorkerGroup, now: float) -> dict[str, Any]:
    """Return the report, reduced if it exceeds the controller's limit."""
    report = build_report(group, now)
    pods = sum(1 for _ in group.meeting.roster)
    fits = len(encode(report)) + TAG_BYTES <= largest_report(len(report["members"]), pods)
    return report if fits else build_report(group, now, whole=False)


def build_report(group: WorkerGroup, now: float, *, whole: bool = True) -> dict[str, Any]:
    """Return the report; it fits into a frame with many hundreds of replicas.

    Unless `whole`, it has the progress of the writer and the evaluator alone.
    """
    running = group.attempt is not None and group.phase in ("running", "stopping")
    active = group.attempt.replicas if group.attempt is not None and running else group.meeting.replicas
    replicas = dict.fromkeys((*active, *group.meeting.all_replicas))
    replicas.update(dict.fromkeys(member.replica for member in group.meeting.roster))
    writer = group.settings.replica
    return {
        "type": "report",
        "role": "leader",
        "phase": group.phase,
        "phaseSeconds": round(now - group.since, 3),
        "attempt": group.attempt.number if group.attempt else 0,
        "world": count_roles(active),
        "restarts": group.budget.counts.to_json(),
        "failure": group.failure.to_json() if group.failure else None,
        "notices": group.notices,
        "members": {
            name: _describe(
                group.meeting.roster.get(name), now, writer=writer, whole=whole, began=group.began
            )
            for name in replicas
        },
    }


def _describe(member: Member | None, now: float, *, writer: str, whole: bool, began: float) -> dict[str, Any]:
    if member is None:
        seconds = round(now - began, 3)
        return {"pod": "", "incarnation": 0, "state": ABSENT, "seconds": seconds, "report": None}
    is_full = member.replica == writer or member.is_observer
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
