"""What keeps an attempt from going on though no training process has ended badly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainjob_trainer.agent.attempt import Attempt
from trainjob_trainer.agent.failure import PREEMPTED, STALLED, UNREACHABLE, Failure
from trainjob_trainer.agent.rendezvous import Rendezvous
from trainjob_trainer.agent.roster import Member
from trainjob_trainer.agent.stall import Rank, blame


@dataclass(frozen=True)
class Trouble:
    """Somebody who holds the others up.

    Attributes:
        member: who.
        reason: `Unreachable`, `Preempted` or `Stalled`.
        message: what is wrong with them.
    """

    member: Member
    reason: str
    message: str

    @property
    def may_save(self) -> bool:
        """Whether training still runs: who leaves, or is about to be replaced, has time for a checkpoint."""
        is_at_work = self.member.link is not None and not self.member.is_quiet
        return self.reason == PREEMPTED or (self.reason == UNREACHABLE and is_at_work)

    def as_failure(self, attempt: int, time: float) -> Failure:
        """Return the failure of an attempt that this is; only a stall is the user's program's doing.

        Args:
            attempt: its number.
            time: Unix seconds.
        """
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
    """Return the first trouble there is: somebody is gone, is asked to leave, or training stands still.

    Args:
        attempt: the one that runs.
        meeting: who is there.
        limit: seconds without progress that are a failure, or None.
        now: the time.
    """
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
