"""A job that is going to fail does so once none of its pods runs."""

from __future__ import annotations

from datetime import datetime, timedelta

from trainjob.core import transitions
from trainjob.core.actions import Event, Plan, stop_pods
from trainjob.core.backoff import time_left
from trainjob.core.conditions import FAILURE_TARGET, find_condition, is_true
from trainjob.core.observed import Observed

LEAVING = timedelta(seconds=10)
"""How long agents that have given up may take to end: a pod that is deleted takes its log along."""


def failing(observed: Observed, now: datetime) -> Plan | None:
    """Stop what runs; ended pods stay for their logs until the job's TTL."""
    target = find_condition(observed.status, FAILURE_TARGET)
    if target is None or not is_true(observed.status, FAILURE_TARGET):
        return None
    running = observed.unfinished_pods
    left = time_left(target.last_transition_time, LEAVING, now)
    if left > timedelta(0) and any(p.words is not None and p.words.gave_up for p in observed.training_pods):
        leaving = [p for p in running if p in observed.training_pods]
        if leaving:
            others = tuple(p for p in running if p not in leaving)
            return Plan(observed.status, stop_pods(observed, others), requeue=left)
    if running:
        return Plan(observed.status, stop_pods(observed, running))
    return Plan(
        transitions.fail(observed, target.reason, target.message, now),
        events=(Event("Warning", "Failed", target.message),),
    )
