"""A job that is going to fail does so once none of its pods runs."""

from __future__ import annotations

from datetime import datetime

from trainjob.core import transitions
from trainjob.core.actions import Event, Plan, stop_pods
from trainjob.core.conditions import FAILURE_TARGET, find_condition, is_true
from trainjob.core.observed import Observed


def failing(observed: Observed, now: datetime) -> Plan | None:
    """Stop what runs; ended pods stay for their logs until the job's TTL."""
    target = find_condition(observed.status, FAILURE_TARGET)
    if target is None or not is_true(observed.status, FAILURE_TARGET):
        return None
    if observed.unfinished_pods:
        return Plan(observed.status, stop_pods(observed, observed.unfinished_pods))
    return Plan(
        transitions.fail(observed, target.reason, target.message, now),
        events=(Event("Warning", "Failed", target.message),),
    )
