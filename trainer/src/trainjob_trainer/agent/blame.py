"""Which failure started it, among those that every failure sets off in its peers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainjob_trainer.agent.failure import (
    PEER_LOST,
    PREEMPTED,
    Failure,
    code_of,
    is_charged,
    is_permanent,
    reason_of,
)
from trainjob_trainer.agent.messages import RUNNING
from trainjob_trainer.agent.roster import Member


def culprit(failures: Sequence[Failure], members: Iterable[Member]) -> Failure:
    """Return the failure to blame: the earliest that says more than that a peer was lost.

    A process that has reported why it fails may take many seconds to end, while its peers have gone already.

    Args:
        failures: those of one attempt, in the order in which they were told.
        members: who takes part in it.
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
