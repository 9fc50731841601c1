"""A job that has ended, is invalid, is failing, is suspended or takes too long."""

from __future__ import annotations

from datetime import datetime, timedelta

from trainjob.api import KIND
from trainjob.core import transitions
from trainjob.core.actions import Delete, Event, Plan, stop_pods
from trainjob.core.conditions import (
    FAILURE_TARGET,
    RUNNING,
    SUSPENDED,
    active_since,
    find_condition,
    is_finished,
    is_true,
)
from trainjob.core.failure import going_on
from trainjob.core.names import ObjectRef
from trainjob.core.observed import Observed
from trainjob.core.queueing import time_left
from trainjob.core.wording import listed

# Terminal states absorb: what has ended is only cleaned up.


def finished(observed: Observed, now: datetime) -> Plan | None:
    """Stop stragglers, and delete the job when its `ttlSecondsAfterFinished` has run out."""
    if not is_finished(observed.status):
        return None
    stragglers = stop_pods(observed, observed.unfinished_pods)
    ttl = observed.job.spec.ttl_seconds_after_finished
    ended = observed.status.completion_time
    if ttl is None or ended is None:
        return Plan(observed.status, stragglers)
    left = ended + timedelta(seconds=ttl) - now
    if left > timedelta(0):
        return Plan(observed.status, stragglers, requeue=left)
    meta = observed.meta
    return Plan(observed.status, (*stragglers, Delete(ObjectRef(KIND, meta.namespace, meta.name, meta.uid))))


# A job whose spec can't be understood fails, with every error named.


INVALID_REASON = "InvalidSpec"

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
        status = transitions.target_failure(observed, INVALID_REASON, message, now)
        return Plan(status, stop_pods(observed, observed.unfinished_pods))
    return Plan(
        transitions.fail(observed, INVALID_REASON, message, now),
        events=(Event("Warning", "Failed", message),),
    )


def _has_begun(observed: Observed) -> bool:
    return observed.status.start_time is not None and not is_true(observed.status, FAILURE_TARGET)


def _left_alone(observed: Observed, errors: str, now: datetime) -> Plan:
    message = f"{errors}; {_LEFT_ALONE}"
    told = find_condition(observed.status, RUNNING)
    is_told = told is not None and told.reason == INVALID_REASON
    events = () if is_told else (Event("Warning", INVALID_REASON, message),)
    return Plan(transitions.leave_alone(observed, INVALID_REASON, message, now), events=events)


# A job that is going to fail does so once none of its pods runs.


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


# `spec.activeDeadlineSeconds`: a job that takes longer fails.


REASON = "DeadlineExceeded"


def time_left_of_deadline(observed: Observed, now: datetime) -> timedelta | None:
    """Return the time until the job's deadline, or None when it has none or hasn't started."""
    seconds = observed.parsed.spec.active_deadline_seconds if observed.parsed else None
    started = observed.status.start_time
    if seconds is None or started is None:
        return None
    return active_since(observed.status, started) + timedelta(seconds=seconds) - now


def overdue(observed: Observed, now: datetime) -> Plan | None:
    """Fail a job whose time is up."""
    left = time_left_of_deadline(observed, now)
    if left is None or left > timedelta(0):
        return None
    message = f"ran longer than spec.activeDeadlineSeconds ({observed.job.spec.active_deadline_seconds} s)"
    return Plan(transitions.target_failure(observed, REASON, message, now))


# `spec.suspend`: pods go, checkpoints and counts stay; a resumed job goes on from the last checkpoint.


def suspended(observed: Observed, now: datetime) -> Plan | None:
    """Stop a job that is to be suspended, and start a new gang for one that is to go on."""
    if not observed.job.spec.suspend:
        return _resumed(observed, now)
    running = observed.unfinished_pods
    message = "suspended; set spec.suspend to false to go on"
    status = transitions.suspend(observed, message, now, reached=not running)
    if is_true(status, SUSPENDED) and not is_true(observed.status, SUSPENDED):
        return Plan(status, events=(Event("Normal", "Suspended", message),))
    return Plan(status, stop_pods(observed, running))


def _resumed(observed: Observed, now: datetime) -> Plan | None:
    held = find_condition(observed.status, SUSPENDED)
    if held is None or held.reason not in ("Suspending", "Suspended"):
        return None
    message = going_on(observed)
    return Plan(transitions.resume(observed, message, now), events=(Event("Normal", "Resumed", message),))
