"""Jobs that are finished, invalid, failing, suspended or past their deadline."""

from __future__ import annotations

from datetime import datetime, timedelta

from trainjob.api import KIND
from trainjob.core import transitions
from trainjob.core.actions import Delete, Event, Plan, stop_pods
from trainjob.core.conditions import (
    FAILURE_TARGET,
    QUEUED,
    RUNNING,
    SUSPENDED,
    active_since,
    find_condition,
    is_finished,
    is_true,
)
from trainjob.core.delays import time_left
from trainjob.core.failure import awaited_pods, describe_resume, end_due
from trainjob.core.names import ObjectRef
from trainjob.core.observed import Observed
from trainjob.core.wording import listed

# Finished jobs: only cleanup is left.


def finished(observed: Observed, now: datetime) -> Plan | None:
    """Stop the pods that still run, and delete the job when its `ttlSecondsAfterFinished` has expired."""
    if not is_finished(observed.status):
        return None
    stragglers = stop_pods(observed, observed.unfinished_pods)
    ttl = observed.effective_job.spec.ttl_seconds_after_finished
    ended = observed.status.completion_time
    if ttl is None or ended is None:
        return Plan(observed.status, stragglers)
    left = ended + timedelta(seconds=ttl) - now
    if left > timedelta(0):
        return Plan(observed.status, stragglers, requeue=left)
    meta = observed.meta
    return Plan(observed.status, (*stragglers, Delete(ObjectRef(KIND, meta.namespace, meta.name, meta.uid))))


# Invalid jobs: they fail, and the message has every error.


INVALID_REASON = "InvalidSpec"

_LEFT_ALONE = (
    "its pods keep running, but the controller no longer manages them: correct the spec, delete the job and "
    "create it again"
)


def invalid(observed: Observed, now: datetime) -> Plan | None:
    """Fail a job with errors; a finished job keeps its outcome after any edit.

    A job that was valid when it started may be invalid under stricter rules. Its status reports the errors,
    and its pods run to their end.
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
    condition = find_condition(observed.status, RUNNING)
    is_reported = condition is not None and condition.reason == INVALID_REASON
    events = () if is_reported else (Event("Warning", INVALID_REASON, message),)
    return Plan(transitions.leave_alone(observed, INVALID_REASON, message, now), events=events)


# Failing jobs: a job has failed once none of its pods runs.


LEAVING = timedelta(seconds=10)
"""How long agents that have given up may take to end; deleting a pod deletes its log."""


def failing(observed: Observed, now: datetime) -> Plan | None:
    """Stop running pods; ended pods stay for their logs until the job's TTL."""
    target = find_condition(observed.status, FAILURE_TARGET)
    if target is None or not is_true(observed.status, FAILURE_TARGET):
        return None
    running = observed.unfinished_pods
    left = time_left(target.last_transition_time, LEAVING, now)
    if left > timedelta(0) and any(p.termination and p.termination.gave_up for p in observed.training_pods):
        leaving = [p for p in running if p in observed.training_pods]
        if leaving:
            others = tuple(p for p in running if p not in leaving)
            return Plan(observed.status, stop_pods(observed, others), requeue=left)
    awaited = awaited_pods(observed, now)
    if awaited:
        return Plan(observed.status, stop_pods(observed, running), requeue=end_due(awaited, now))
    return Plan(
        transitions.fail(observed, target.reason, target.message, now),
        events=(Event("Warning", "Failed", target.message),),
    )


# `spec.activeDeadlineSeconds`: a job that runs longer fails.


REASON = "DeadlineExceeded"


def time_left_of_deadline(observed: Observed, now: datetime) -> timedelta | None:
    """Return the time until the job's deadline, or None when it has none, hasn't started or is queued."""
    seconds = observed.parsed.spec.active_deadline_seconds if observed.parsed else None
    started = observed.status.start_time
    if seconds is None or started is None or is_true(observed.status, QUEUED):
        return None
    return active_since(observed.status, started) + timedelta(seconds=seconds) - now


def queued(observed: Observed, now: datetime) -> Plan | None:
    """Hold a job that an integration holds, such as one that waits in a queue."""
    held = (integration.held(observed, now) for integration in observed.settings.integrations)
    return next((made for made in held if made is not None), None)


def overdue(observed: Observed, now: datetime) -> Plan | None:
    """Fail a job that is past its deadline."""
    left = time_left_of_deadline(observed, now)
    if left is None or left > timedelta(0):
        return None
    deadline = observed.effective_job.spec.active_deadline_seconds
    message = f"ran longer than spec.activeDeadlineSeconds ({deadline} s)"
    return Plan(transitions.target_failure(observed, REASON, message, now))


# `spec.suspend`: pods are deleted, checkpoints and counts stay; a resumed job restores the last checkpoint.


def suspended(observed: Observed, now: datetime) -> Plan | None:
    """Stop the pods of a suspended job, or start a new attempt of a resumed one."""
    if not observed.effective_job.spec.suspend:
        return _resumed(observed, now)
    running, awaited = observed.unfinished_pods, awaited_pods(observed, now)
    message = "suspended; set spec.suspend to false to continue"
    status = transitions.suspend(observed, message, now, reached=not awaited)
    if is_true(status, SUSPENDED) and not is_true(observed.status, SUSPENDED):
        return Plan(status, events=(Event("Normal", "Suspended", message),))
    return Plan(status, stop_pods(observed, running), requeue=end_due(awaited, now))


def _resumed(observed: Observed, now: datetime) -> Plan | None:
    held = find_condition(observed.status, SUSPENDED)
    if held is None or held.reason not in ("Suspending", "Suspended"):
        return None
    message = describe_resume(observed)
    return Plan(transitions.resume(observed, message, now), events=(Event("Normal", "Resumed", message),))
