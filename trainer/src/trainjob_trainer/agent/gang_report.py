"""What the leading agent tells the controller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainjob_trainer.agent.gang import Gang
from trainjob_trainer.agent.messages import count_roles
from trainjob_trainer.agent.roster import ABSENT, Member
from trainjob_trainer.agent.wire import TAG_BYTES, encode, largest_report

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

    Args:
        gang: the state of all.
        now: the time.
        whole: with the progress of every seat; else of the writer and the evaluator alone.
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
