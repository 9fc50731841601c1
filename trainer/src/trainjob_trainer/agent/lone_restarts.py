"""A worker of a parameter-server job is started again alone: when, and what it costs."""

from __future__ import annotations

from dataclasses import replace

from trainjob_trainer.agent.attempt import Attempt
from trainjob_trainer.agent.budget import Budget, Verdict
from trainjob_trainer.agent.failure import UNREACHABLE, Failure
from trainjob_trainer.agent.ledger import furthest
from trainjob_trainer.agent.messages import IDLE
from trainjob_trainer.agent.rendezvous import Rendezvous
from trainjob_trainer.agent.roster import Member, Roster
from trainjob_trainer.agent.trouble import Trouble

_SERVING = "training"
"""What a worker reports once the chief can reach it."""


def judge_alone(
    attempt: Attempt, roster: Roster, budget: Budget, member: Member, failure: Failure, now: float
) -> Verdict:
    """Decide whether a process is started again, count that restart, and note when it is due.

    The step of such a failure is the one that training had come to by then, so that a worker which serves and
    is killed now and then is not taken for one that fails at the same place each time. One that fails before
    it serves has no step: that is the same failure each time.

    Args:
        attempt: that goes on.
        roster: who is there.
        budget: the job's; the restart is counted in it.
        member: whose process has failed.
        failure: how.
        now: the time.
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

    Args:
        attempt: that goes on.
        meeting: who is there.
        budget: the job's; restarts are counted in it that nobody else counts.
        now: the time.
        unix_time: the same in Unix seconds.

    Returns:
        Why such a restart was needed, if one has been counted.
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
