"""One start of training, from the barrier to its end, and the conditions that stop it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from trainjob_trainer.agent.budget import Budget, Verdict
from trainjob_trainer.agent.messages import count_roles
from trainjob_trainer.agent.rendezvous import LoneReplicas, Member, Rendezvous, Roster
from trainjob_trainer.agent.stall import Rank, StallWatch, blame
from trainjob_trainer.contract.exits import EXITS, ExitCode
from trainjob_trainer.contract.reports import FINISHED, IDLE, PREEMPTED, STALLED, UNREACHABLE, Failure
from trainjob_trainer.contract.restarts import furthest

FIRST_FAILURE_SECONDS = 0.5
"""Seconds that a failure caused by another one waits for the report of that one."""

ENDED_SECONDS = 10.0
"""Seconds in which one worker waits in a call for another that has ended well."""

WAITS_FOR_ENDED = EXITS[ExitCode.INVALID_CONFIGURATION].name


@dataclass
class Attempt:
    """The leading agent's record of one attempt.

    Attributes:
        number: 1 for the first; each is higher than all before.
        pods: each replica's pod, that of its latest start alone included.
        done: replicas whose training process has succeeded.
        failures: in the order of their reports.
        judged_at: the time at which the first of them is found; None while there is none.
        graceful: once it is being stopped: whether it may save first.
        stacks: whether training processes print their stacks before they are stopped.
        alone: replicas that restart without the others.
        waits_since: the time since which one waits for another that has ended well; None while none does.
    """

    number: int
    replicas: Sequence[str]
    started: float
    pods: dict[str, str]
    done: set[str] = field(default_factory=set)
    failures: list[Failure] = field(default_factory=list)
    judged_at: float | None = None
    graceful: bool = False
    stacks: bool = False
    watches: dict[str, StallWatch] = field(default_factory=dict)
    waits_since: float | None = None
    alone: LoneReplicas = field(init=False)

    def __post_init__(self) -> None:
        self.alone = LoneReplicas(self.replicas, self.number, self.started)

    @property
    def latest(self) -> int:
        """Return the number of the latest start in it."""
        return max(self.number, self.alone.latest)

    @property
    def world(self) -> dict[str, int]:
        """Return the number of replicas of each role."""
        return count_roles(self.replicas)

    @property
    def is_finished(self) -> bool:
        """Return whether training is complete; parameter servers never end by themselves."""
        roles = ("chief",) if {"chief", "ps"} <= set(self.world) else ("chief", "worker")
        return {name for name in self.replicas if name.rpartition("-")[0] in roles} <= self.done

    def takes_part(self, member: Member) -> bool:
        """Return whether a member was started in this attempt."""
        number = self.alone.number(member.replica, self.number)
        return member.replica in self.pods and member.attempt == number

    def differs(self, replicas: Sequence[str], all_replicas: Sequence[str]) -> bool:
        """Return whether it must stop so that `replicas`, the available ones of `all_replicas`, take part."""
        missing = set(self.replicas) - set(replicas)
        is_dispensable = missing <= self.alone.replicas & set(all_replicas)
        is_bearable = set(replicas) <= set(self.replicas) and is_dispensable
        return list(replicas) != list(self.replicas) and not is_bearable

    def takes_steps(self, replica: str) -> bool:
        """Return whether a replica reports steps: with parameter servers only the chief does."""
        return not self.alone.replicas or replica.startswith("chief-")

    def trainees(self, roster: Roster) -> list[Member]:
        """Return the connected members of this attempt."""
        return [member for member in roster.trainees if self.takes_part(member)]

    def observe(self, member: Member, now: float) -> None:
        """Record the state and report of a member of this attempt."""
        if member.child == FINISHED:
            self.done.add(member.replica)
        self.watches.setdefault(member.replica, StallWatch()).observe(member.report, now)

    def fail(self, failure: Failure, now: float) -> None:
        """Record a failure: a cascade waits for its cause, any other is judged at once."""
        self.failures.append(failure)
        if not failure.is_cascade:
            self.judged_at = now
        elif self.judged_at is None:
            self.judged_at = now + FIRST_FAILURE_SECONDS


# The conditions that stop an attempt although no training process has failed.


@dataclass(frozen=True)
class Trouble:
    """A member that blocks the others: `Unreachable`, `Preempted`, `Stalled` or `InvalidConfiguration`."""

    member: Member
    reason: str
    message: str

    @property
    def may_save(self) -> bool:
        """Return whether training still runs and a checkpoint is possible before the member ends."""
        is_at_work = self.member.link is not None and not self.member.is_quiet
        return self.reason == PREEMPTED or (self.reason == UNREACHABLE and is_at_work)

    def as_failure(self, attempt: int, time: float) -> Failure:
        """Return it as an attempt's failure at a Unix time; only a stall is caused by the user's program."""
        member = self.member
        return Failure(
            member.replica,
            member.pod,
            member.incarnation,
            attempt,
            self.reason,
            message=self.message,
            step=member.step(),
            counted=self.reason in (STALLED, WAITS_FOR_ENDED),
            permanent=self.reason == WAITS_FOR_ENDED,
            time=time,
        )


def find_trouble(attempt: Attempt, meeting: Rendezvous, limit: float | None, now: float) -> Trouble | None:
    """Return the first trouble: a member is lost or must leave, or a stall of `limit` seconds."""
    members = {name: meeting.roster.get(name) for name in attempt.replicas if name not in attempt.done}
    present = {name: member for name, member in members.items() if member is not None}
    failed = {failure.replica for failure in attempt.failures}
    needed = [member for name, member in present.items() if name not in attempt.alone]
    for member in needed:
        absence = _absence(member, attempt, meeting, failed)
        if absence:
            return Trouble(member, UNREACHABLE, absence)
    for member in needed:
        if member.leaving:
            return Trouble(member, PREEMPTED, "was asked to stop")
    return _waits_for_ended(attempt, present, now) or _stall(attempt, present, limit, now)


def _waits_for_ended(attempt: Attempt, present: Mapping[str, Member], now: float) -> Trouble | None:
    ended = next((name for name in attempt.replicas if name in attempt.done), None)
    waits = next((name for name, member in present.items() if (member.report or {}).get("meets")), None)
    if waits is None or ended is None:
        attempt.waits_since = None
        return None
    since = attempt.waits_since = now if attempt.waits_since is None else attempt.waits_since
    if now - since < ENDED_SECONDS:
        return None
    call = str((present[waits].report or {})["meets"])[:20]
    message = (
        f"waits in {call}() for {ended}, which has ended: every worker must call {call}() of a model that "
        "they train together; to call it in one worker only, load a copy (keras.models.load_model)"
    )
    return Trouble(present[waits], WAITS_FOR_ENDED, message)


def _absence(member: Member, attempt: Attempt, meeting: Rendezvous, failed: set[str]) -> str:
    """Return why a member no longer takes part, or an empty text."""
    if member.link is None:
        return "can't be reached"
    if not meeting.is_wanted(member):
        return "is being replaced"
    if member.attempt != attempt.number:
        return "has come back without its training process"
    return "has no training process" if member.is_quiet and member.replica not in failed else ""


def _stall(
    attempt: Attempt, present: Mapping[str, Member], limit: float | None, now: float
) -> Trouble | None:
    watches = attempt.watches
    if limit is None or attempt.failures:
        return None
    at_work = {name: m for name, m in present.items() if m.link is not None and not m.is_quiet}
    waited_for = {name for name, member in at_work.items() if _is_waited_for(attempt, member, limit, now)}
    for name in watches.keys() - waited_for if waited_for else ():
        watches[name].hold(now)
    stalled = [name for name in present if name in watches and watches[name].stalled(now, limit)]
    if not stalled or waited_for:
        return None
    ranks = [
        Rank(n, m.stopped, m.age, m.step(), reported=n in stalled, takes_steps=attempt.takes_steps(n))
        for n, m in at_work.items()
    ]
    member = present[blame(ranks)]
    why = f"no progress for {limit:g} s" + ("; its process is stopped" if member.stopped else "")
    return Trouble(member, STALLED, why)


def _is_waited_for(attempt: Attempt, member: Member, limit: float, now: float) -> bool:
    """Return whether the others rightly wait for this member: it saves, say, and isn't frozen."""
    watch = attempt.watches.get(member.replica)
    is_frozen = member.stopped or member.age is None or member.age >= limit
    return watch is not None and not is_frozen and watch.is_at_long_work(now, limit)


# The restart of one worker of a parameter-server job: when, and how it counts.


_SERVING = "training"
"""The state that a worker reports once the chief can reach it."""


def judge_alone(
    attempt: Attempt, roster: Roster, budget: Budget, member: Member, failure: Failure, now: float
) -> Verdict:
    """Decide whether a process restarts, count that restart in `budget`, and schedule it.

    Such a failure gets the step that training had reached, so that a worker which serves and is killed now
    and then does not count as one that fails at the same place each time. One that fails before it serves
    has no step: that is the same failure each time.
    """
    step = furthest(one.step() for one in attempt.trainees(roster))
    has_served = (member.report or {}).get("state") == _SERVING
    budget.counts = budget.counts.cut_off(step)
    judged = replace(failure, step=step if has_served else None, alone=True)
    verdict = budget.judge(judged, attempt.alone.started(member.replica), now)
    attempt.watches.clear()  # the chief may have waited for it
    if verdict.give_up:
        return replace(verdict, failure=replace(verdict.failure, alone=False))
    attempt.alone.failed(member.replica, now)
    return verdict


def start_alone(
    attempt: Attempt, meeting: Rendezvous, budget: Budget, now: float, unix_time: float
) -> Failure | None:
    """Restart the replicas that have failed or reconnected, while the others continue.

    `budget` counts a restart that neither a failure nor the controller counts; returns its cause, or None.
    """
    returned = None
    for replica in sorted(attempt.alone.replicas):
        member = meeting.ready(replica)
        if member is None or member.child != IDLE or not attempt.alone.is_due(replica, now):
            continue
        if not attempt.alone.is_pending(replica) and member.pod == attempt.pods[replica]:
            lost = Trouble(member, UNREACHABLE, "couldn't be reached")
            latest = attempt.alone.number(replica, attempt.number)
            returned = replace(lost.as_failure(latest, unix_time), alone=True)
            budget.counts = budget.counts.restarted(counted=False)
        number = budget.counts.attempt + 1
        budget.counts = budget.counts.at_least(number)
        attempt.alone.begin(replica, number, now)
        attempt.pods[replica] = member.pod
        meeting.begin_alone(member, number, attempt.number, budget.counts, now)
    return returned
