"""Restarts after a failure, from the last checkpoint, as often as `spec.maxRestarts` allows.

Agents restart processes in running containers, and report it. This policy decides on the rest: a pod that is
gone is replaced, alone where there are agents, else together with all other training pods.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from trainjob.core import transitions
from trainjob.core.actions import Event, Plan
from trainjob.core.delays import time_left
from trainjob.core.failure import (
    Failure,
    alike,
    bad_pods,
    checkpoint_step,
    describe_child,
    first_failure,
    is_mistake_at_start,
    made,
    origin,
    restarts_of,
    trains_without,
)
from trainjob.core.memory import describe_memory
from trainjob.core.observed import Observed
from trainjob.core.pods import PodState
from trainjob.core.stragglers import describe_suspects
from trainjob_trainer.contract.exits import ExitCode
from trainjob_trainer.contract.restarts import most_alike

CULPRIT_GRACE = timedelta(seconds=10)
"""How long the controller waits, after a process lost its peer, to see which peer failed, and why."""


def failed(observed: Observed, now: datetime) -> Plan | None:
    """Restart after a failure, or give up, naming what failed first."""
    failure = first_failure(observed, observed.training_replicas, now)
    if failure is None:
        return None
    wait = _culprit_wait(observed, failure, now)
    if wait is not None:
        return Plan(observed.status, requeue=wait)
    why = _why_given_up(observed, failure)
    if why is not None:
        message = f"{_what_happened(observed, failure)}; {why}"
        return Plan(transitions.target_failure(observed, failure.reason, message, now, failure))
    message = f"{_what_happened(observed, failure)}; {_what_next(observed, failure)}"
    return Plan(
        transitions.restart(observed, failure, message, now, replaced=_replaced(observed, now)),
        events=(Event("Warning", "Restarting", message),),
    )


def restarted_in_place(observed: Observed, now: datetime) -> Plan | None:
    """Record in the status a restart that the agents have made."""
    report, known = observed.agent_report, observed.status.restarts
    restarts = report.restart_counts.restarts if report is not None else 0
    if report is None or report.failure is None or restarts <= made(known):
        return None
    failure = describe_child(observed, report.failure)
    number = max(1, restarts_of(observed).counted)  # progress may have reset the count before the report
    count = (
        _count(number, observed.effective_job.spec.max_restarts) if failure.cause.counted else _NOT_COUNTED
    )
    how = "restarted alone" if report.failure.alone else f"restarted in place{origin(observed)}"
    message = f"{_what_happened(observed, failure)}; {how} ({count})"
    step = transitions.restarted_alone if report.failure.alone else transitions.restarted_in_place
    return Plan(
        step(observed, failure, message, now),
        events=(Event("Warning", "Restarted", message),),
    )


def _replaced(observed: Observed, now: datetime) -> tuple[str, ...]:
    """Return the names of the pods to replace: failed ones, and those whose agents have succeeded."""
    if not observed.in_place:
        return ()
    ended = [p for p in observed.training_pods if p.state is PodState.SUCCEEDED]
    return tuple(dict.fromkeys(p.name for p in (*bad_pods(observed, now), *ended)))


def _culprit_wait(observed: Observed, failure: Failure, now: datetime) -> timedelta | None:
    pod = failure.pod
    if pod is None or pod.exit_code != ExitCode.PEER_LOST or pod.finished_at is None or failure.given_up:
        return None
    left = time_left(pod.finished_at, CULPRIT_GRACE, now)
    others_run = any(not p.ended for p in observed.training_pods)
    return left if others_run and left > timedelta(0) else None


def _why_given_up(observed: Observed, failure: Failure) -> str | None:
    spent, allowed = restarts_of(observed).counted, observed.effective_job.spec.max_restarts
    most = most_alike(failure.exit_code, failure.log, failure.step)
    if failure.cause.permanent or is_mistake_at_start(observed, failure):
        why = "a restart can't fix that"
    elif failure.repeated or (failure.cause.counted and alike(observed, failure) >= most):
        why = f"given up after the same failure {most} times in a row"
    elif failure.given_up or (failure.cause.counted and spent >= allowed):
        used_up = f"{min(spent, allowed)} of {allowed} restarts used"
        why = used_up if allowed else "no restarts are allowed (maxRestarts: 0)"
    else:
        return None
    if failure.checkpoint_step is None or failure.reason == "OutputFinished":
        return why
    return f"{why}; resumable from step {failure.checkpoint_step}"


def _what_happened(observed: Observed, failure: Failure) -> str:
    return f"{failure.sentence}{describe_suspects(observed, failure)}{describe_memory(observed, failure)}"


def _what_next(observed: Observed, failure: Failure) -> str:
    spent, allowed = restarts_of(observed).counted, observed.effective_job.spec.max_restarts
    count = _count(spent + 1, allowed) if failure.cause.counted else _NOT_COUNTED
    if trains_without(observed, failure.replica):
        return f"the others continue training until it is back ({count})"
    saves = observed.in_place and failure.pod is not None and failure.pod.deleted
    start = "" if saves and checkpoint_step(observed) is None else origin(observed)  # it saves before it ends
    return f"restarting{start} ({count})"


_NOT_COUNTED = "not counted against maxRestarts"


def _count(number: int, allowed: int) -> str:
    return f"restart {number} of {allowed}"
