"""Where a job's time goes: what it spent in each state."""

from __future__ import annotations

from datetime import datetime

from trainjob.api import TrainJobStatus

_SPENT_ON = {
    "Pending": "starting",
    "Running": "training",
    "Restarting": "restarting",
    "Evaluating": "evaluating",
    "Suspended": "suspended",
}
"""By state; the few seconds of a job that is failing are nobody's."""


def with_time_spent(before: TrainJobStatus, status: TrainJobStatus, now: datetime) -> TrainJobStatus:
    """Return the status with the time in the state before put down, if the state is another one now."""
    if status.state == before.state:
        return status
    since, kind = before.spent.since, _SPENT_ON.get(before.state or "")
    changes: dict[str, object] = {"since": now}
    if since is not None and kind is not None:
        seconds = max(0, round((now - since).total_seconds()))
        changes[kind] = getattr(before.spent, kind) + seconds
    return status.model_copy(update={"spent": before.spent.model_copy(update=changes)})
