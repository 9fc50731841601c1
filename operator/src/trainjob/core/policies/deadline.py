"""`spec.activeDeadlineSeconds`: a job that takes longer fails."""

from __future__ import annotations

from datetime import datetime, timedelta

from trainjob.core import transitions
from trainjob.core.actions import Plan
from trainjob.core.conditions import active_since
from trainjob.core.observed import Observed

REASON = "DeadlineExceeded"


def time_left(observed: Observed, now: datetime) -> timedelta | None:
    """Return the time until the job's deadline, or None when it has none or hasn't started."""
    seconds = observed.parsed.spec.active_deadline_seconds if observed.parsed else None
    started = observed.status.start_time
    if seconds is None or started is None:
        return None
    return active_since(observed.status, started) + timedelta(seconds=seconds) - now


def overdue(observed: Observed, now: datetime) -> Plan | None:
    """Fail a job whose time is up."""
    left = time_left(observed, now)
    if left is None or left > timedelta(0):
        return None
    message = f"ran longer than spec.activeDeadlineSeconds ({observed.job.spec.active_deadline_seconds} s)"
    return Plan(transitions.target_failure(observed, REASON, message, now))
