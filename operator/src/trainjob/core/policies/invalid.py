"""A job whose spec can't be understood fails, with every error named."""

from __future__ import annotations

from datetime import datetime

from trainjob.core import transitions
from trainjob.core.actions import Event, Plan, stop_pods
from trainjob.core.conditions import FAILURE_TARGET, RUNNING, find_condition, is_finished, is_true
from trainjob.core.observed import Observed
from trainjob.core.wording import listed

REASON = "InvalidSpec"

_LEFT_ALONE = "its pods go on, but aren't looked after any more: correct that, delete the job, create it anew"


def invalid(observed: Observed, now: datetime) -> Plan | None:
    """Fail a job with errors; one that has ended keeps its outcome whatever is edited into it.

    One that was good when it began is read more strictly by now: it is told so, and its pods go on to their
    end.
    """
    if observed.parsed is not None:
        return None
    if is_finished(observed.status):
        return Plan(observed.status)
    message = listed(str(error) for error in observed.errors)
    if observed.unfinished_pods and _has_begun(observed):
        return _left_alone(observed, message, now)
    if observed.unfinished_pods:
        status = transitions.target_failure(observed, REASON, message, now)
        return Plan(status, stop_pods(observed, observed.unfinished_pods))
    return Plan(
        transitions.fail(observed, REASON, message, now), events=(Event("Warning", "Failed", message),)
    )


def _has_begun(observed: Observed) -> bool:
    return observed.status.start_time is not None and not is_true(observed.status, FAILURE_TARGET)


def _left_alone(observed: Observed, errors: str, now: datetime) -> Plan:
    message = f"{errors}; {_LEFT_ALONE}"
    told = find_condition(observed.status, RUNNING)
    is_told = told is not None and told.reason == REASON
    events = () if is_told else (Event("Warning", REASON, message),)
    return Plan(transitions.leave_alone(observed, REASON, message, now), events=events)
