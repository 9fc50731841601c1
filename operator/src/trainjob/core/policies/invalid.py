"""A job whose spec can't be understood fails, with every error named."""

from __future__ import annotations

from datetime import datetime

from trainjob.core import transitions
from trainjob.core.actions import Event, Plan, stop_pods
from trainjob.core.conditions import is_finished
from trainjob.core.observed import Observed
from trainjob.core.wording import listed

REASON = "InvalidSpec"


def invalid(observed: Observed, now: datetime) -> Plan | None:
    """Fail a job with errors; one that has ended keeps its outcome whatever is edited into it."""
    if observed.parsed is not None:
        return None
    if is_finished(observed.status):
        return Plan(observed.status)
    message = listed(str(error) for error in observed.errors)
    if observed.unfinished_pods:
        status = transitions.target_failure(observed, REASON, message, now)
        return Plan(status, stop_pods(observed, observed.unfinished_pods))
    return Plan(
        transitions.fail(observed, REASON, message, now), events=(Event("Warning", "Failed", message),)
    )
