"""A failed worker restarts the gang from the last checkpoint, as often as `spec.maxRestarts` allows."""

from __future__ import annotations

from datetime import datetime, timedelta

from trainjob.core import transitions
from trainjob.core.actions import Event, Plan
from trainjob.core.backoff import time_left
from trainjob.core.exits import PEER_LOST
from trainjob.core.failure import Failure, first_failure
from trainjob.core.observed import Observed
from trainjob.core.topology import desired_replicas, is_training

CULPRIT_GRACE = timedelta(seconds=10)
"""How long a process that lost its peer waits to hear which peer failed, and why."""


def failed(observed: Observed, now: datetime) -> Plan | None:
    """Restart after a failure, or give up, naming what failed first."""
    seats = [r for r in desired_replicas(observed.job.spec) if is_training(r)]
    failure = first_failure(observed, seats)
    if failure is None:
        return None
    wait = _culprit_wait(observed, failure, now)
    if wait is not None:
        return Plan(observed.status, requeue=wait)
    allowed = observed.job.spec.max_restarts
    used = observed.status.restarts.charged
    if failure.permanent or (failure.charged and used >= allowed):
        message = f"{failure.sentence}; {_why_given_up(failure, used, allowed)}"
        return Plan(transitions.target_failure(observed, failure.reason, message, now, failure))
    message = f"{failure.sentence}; {_what_next(failure, used, allowed)}"
    return Plan(
        transitions.restart(observed, failure, message, now),
        events=(Event("Warning", "Restarting", message),),
    )


def _culprit_wait(observed: Observed, failure: Failure, now: datetime) -> timedelta | None:
    pod = failure.pod
    if pod is None or pod.exit_code != PEER_LOST or pod.finished_at is None:
        return None
    left = time_left(pod.finished_at, CULPRIT_GRACE, now)
    others_run = any(not p.ended for p in observed.training_pods)
    return left if others_run and left > timedelta(0) else None


def _why_given_up(failure: Failure, used: int, allowed: int) -> str:
    why = "a restart can't mend that" if failure.permanent else f"{used} of {allowed} restarts used"
    if failure.checkpoint_step is None or failure.reason == "OutputFinished":
        return why
    return f"{why}; resumable from step {failure.checkpoint_step}"


def _what_next(failure: Failure, used: int, allowed: int) -> str:
    step = failure.checkpoint_step
    origin = "the last checkpoint" if step is None else f"step {step}"  # one may be there, yet unreported
    count = f"restart {used + 1} of {allowed}" if failure.charged else "not counted against maxRestarts"
    return f"restarting from {origin} ({count})"
