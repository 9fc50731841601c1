"""All changes of a job's status by decisions, with one function for each.

Counts and figures that follow the pods without a decision are set in `progress`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from trainjob.api import TrainJobStatus, WorkerStatus
from trainjob.core.conditions import (
    COMPLETE,
    FAILED,
    FAILURE_TARGET,
    QUEUED,
    RESTARTING,
    RUNNING,
    SUCCESS_CRITERIA_MET,
    SUSPENDED,
    find_condition,
    is_true,
    with_condition,
)
from trainjob.core.failure import Failure, alike, reached_step, restarts_of, to_status, trains_without
from trainjob.core.memory import raised_limit
from trainjob.core.observed import Observed
from trainjob.core.pods import Pod
from trainjob.core.progress import WAITING_FOR_STORAGE, with_lost_steps
from trainjob.core.stragglers import nodes_to_keep

ENDED_WELL = "Complete"
START_TIMEOUT = "StartTimeout"
RESIZED = "Resized"
OUTGROWN = "PodOutgrown"

Condition = tuple[str, bool, str]
"""Type, value and reason."""


def start(observed: Observed, message: str, now: datetime) -> TrainJobStatus:
    """Return the status of a job that is seen for the first time: its clock starts."""
    changes = {"state": "Pending", "start_time": now, "attempt": observed.attempt}
    return _changed(observed, message, now, (RUNNING, False, "Starting"), **changes)


def wait(observed: Observed, reason: str, message: str, now: datetime) -> TrainJobStatus:
    """Return the status while not all training replicas run yet."""
    again = find_condition(observed.status, RESTARTING)
    state = _state_of_restart(again.reason) if again and again.status == "True" else "Pending"
    return _changed(observed, message, now, (RUNNING, False, reason), state=state)


def run(observed: Observed, message: str, now: datetime, *, waits: bool = False) -> TrainJobStatus:
    """Return the status once all training replicas run; one of them may wait for storage."""
    restarted = [(RESTARTING, False, "Restarted")] if is_true(observed.status, RESTARTING) else []
    reason = "WaitingForStorage" if waits else "AllReplicasRunning"
    status = _changed(observed, message, now, *restarted, (RUNNING, True, reason), state="Running")
    return status.model_copy(update={"state": WAITING_FOR_STORAGE}) if waits else status


def restart(
    observed: Observed, failure: Failure, message: str, now: datetime, *, replaced: tuple[str, ...] = ()
) -> TrainJobStatus:
    """Return the status for a new attempt; a failure beyond the furthest step so far resets the back-off."""
    known = restarts_of(observed)
    counted = failure.cause.counted
    furthest = -1 if known.furthest_step is None else known.furthest_step
    reached = reached_step(observed, failure.step)
    progressed = reached is not None and reached > furthest
    counts = {
        **_restarted(observed, failure, now),
        "counted": known.counted + int(counted),
        "not_counted": known.not_counted + int(not counted),
        "furthest_step": reached if progressed else known.furthest_step,
        "since_progress": 1 if progressed else known.since_progress + 1,
        "replaced_pods": replaced,
    }
    return _restarting(
        observed,
        failure.reason,
        message,
        now,
        attempt=observed.attempt + 1,
        first_failure=to_status(failure, message),
        restarts=known.model_copy(update=counts),
        **_raised(observed, failure),
    )


def restarted_in_place(observed: Observed, failure: Failure, message: str, now: datetime) -> TrainJobStatus:
    """Return the status while the agents restart training: it runs as soon as they report so."""
    counts = _restarted(observed, failure, now)
    return _restarting(
        observed,
        failure.reason,
        message,
        now,
        attempt=observed.attempt,
        first_failure=to_status(failure, message),
        restarts=restarts_of(observed).model_copy(update=counts),
        **_raised(observed, failure),
    )


def restarted_alone(observed: Observed, failure: Failure, message: str, now: datetime) -> TrainJobStatus:
    """Return the status after agents restarted one process; the others trained on, so it isn't a restart."""
    counts = {"same_failures": alike(observed, failure), "last_time": now}
    return _changed(
        observed,
        message,
        now,
        attempt=observed.attempt,
        first_failure=to_status(failure, message),
        restarts=restarts_of(observed).model_copy(update=counts),
        **_raised(observed, failure),
    )


def resize(
    observed: Observed, message: str, now: datetime, *, without: tuple[str, ...] = ()
) -> TrainJobStatus:
    """Return the status for a new number of workers, which is no failure; some may be missing."""
    sizes = {"size": observed.effective_job.spec.worker.replicas, "unavailable": without}
    return _restarting(
        observed,
        RESIZED,
        message,
        now,
        attempt=observed.attempt + 1,
        restarts=observed.status.restarts.model_copy(update={"next_time": None}),
        worker=(observed.status.worker or WorkerStatus()).model_copy(update=sizes),
    )


def replace_pods(
    observed: Observed,
    reason: str,
    message: str,
    now: datetime,
    *,
    pods: Iterable[Pod],
    until: datetime | None = None,
) -> TrainJobStatus:
    """Return the status for new pods in place of these, without a failure: a restart that doesn't count.

    Args:
        observed: the job.
        reason: `START_TIMEOUT`, when replicas that run yield, or `OUTGROWN`, when some can't get more memory.
        message: what happened.
        now: the current time.
        pods: those that are replaced.
        until: when the new ones are created; None for at once.
    """
    known = restarts_of(observed)
    counts = {
        "not_counted": known.not_counted + 1,
        "last_time": now,
        "next_time": until,
        "replaced_pods": tuple(p.name for p in pods),
    }
    return _restarting(
        observed,
        reason,
        message,
        now,
        attempt=observed.attempt + 1,
        restarts=known.model_copy(update=counts),
    )


def leave_alone(observed: Observed, reason: str, message: str, now: datetime) -> TrainJobStatus:
    """Return the status of a job that isn't managed any more; its pods keep running."""
    return _changed(observed, message, now, (RUNNING, is_true(observed.status, RUNNING), reason))


def suspend(observed: Observed, message: str, now: datetime, *, reached: bool) -> TrainJobStatus:
    """Return the status of a suspended job; `reached` once none of its pods runs any more."""
    suspended = (SUSPENDED, reached, "Suspended" if reached else "Suspending")
    queued = [(QUEUED, False, "Suspended")] if is_true(observed.status, QUEUED) else []
    return _changed(
        observed, message, now, (RUNNING, False, "Suspended"), *queued, suspended, state="Suspended"
    )


def queue(observed: Observed, reason: str, message: str, now: datetime) -> TrainJobStatus:
    """Return the status of a job that waits for its queue, or has to leave it to others."""
    return _changed(
        observed, message, now, (RUNNING, False, "Queued"), (QUEUED, True, reason), state="Queued"
    )


def admit(observed: Observed, message: str, now: datetime) -> TrainJobStatus:
    """Return the status of an admitted job, with the number of workers that were admitted."""
    size = {"size": observed.effective_job.spec.worker.replicas}
    worker = (observed.status.worker or WorkerStatus()).model_copy(update=size)
    return _begin_again(observed, message, now, (QUEUED, False, "Admitted"), worker=worker)


def resume(observed: Observed, message: str, now: datetime) -> TrainJobStatus:
    """Return the status of a resumed job."""
    return _begin_again(observed, message, now, (SUSPENDED, False, "Resumed"))


def meet_success_criteria(observed: Observed, message: str, now: datetime) -> TrainJobStatus:
    """Return the status after training has finished; the evaluator may still run."""
    reason = "TrainingFinished"
    conditions = (RUNNING, False, reason), (SUCCESS_CRITERIA_MET, True, reason)
    return _changed(observed, message, now, *conditions, state="Evaluating")


def complete(observed: Observed, message: str, now: datetime) -> TrainJobStatus:
    """Return the status of a job that has succeeded."""
    conditions = (RUNNING, False, "Finished"), (COMPLETE, True, "TrainingFinished")
    return _changed(observed, message, now, *conditions, state=ENDED_WELL, completion_time=now)


def target_failure(
    observed: Observed, reason: str, message: str, now: datetime, failure: Failure | None = None
) -> TrainJobStatus:
    """Return the status of a failing job, written before its pods stop so that the reason outlives them."""
    first = {} if failure is None else {"first_failure": to_status(failure, message)}
    return _changed(
        observed,
        message,
        now,
        (RUNNING, False, reason),
        (FAILURE_TARGET, True, reason),
        state="Failing",
        restarts=restarts_of(observed),
        **first,
    )


def fail(observed: Observed, reason: str, message: str, now: datetime) -> TrainJobStatus:
    """Return the status of a job that has failed, and none of whose pods runs."""
    restarting = [(RESTARTING, False, reason)] if is_true(observed.status, RESTARTING) else []
    conditions = *restarting, (RUNNING, False, reason), (FAILED, True, reason)
    return _changed(observed, message, now, *conditions, state="Failed", completion_time=now)


def _begin_again(
    observed: Observed, message: str, now: datetime, condition: Condition, **changes: Any
) -> TrainJobStatus:
    """Return the status of a job without pods that gets new ones, which resume if there were pods before."""
    is_trained = is_true(observed.status, SUCCESS_CRITERIA_MET)
    counts = {"next_time": None, "replaced_pods": tuple(p.name for p in observed.training_pods)}
    return _changed(
        observed,
        message,
        now,
        condition,
        state="Evaluating" if is_trained else "Pending",
        attempt=observed.attempt + 1 if observed.status.attempt else None,
        restarts=observed.status.restarts.model_copy(update=counts),
        **changes,
    )


def _restarted(observed: Observed, failure: Failure, now: datetime) -> dict[str, Any]:
    """Return what a restart after a failure changes in the counts, by the controller or the agents."""
    known = with_lost_steps(observed, observed.status)
    goes_on = trains_without(observed, failure.replica)
    reached = None if goes_on else reached_step(observed, failure.step)
    return {
        "steps_lost": known.steps_lost,
        "reached_step": max(filter(None, (known.reached_step, reached)), default=None),
        "same_failures": alike(observed, failure),
        "last_time": now,
        "next_time": None,
        "diverged_nodes": nodes_to_keep(observed, failure),
    }


def _raised(observed: Observed, failure: Failure) -> dict[str, Any]:
    """Return what changes if this failure raises the workers' memory."""
    limit = raised_limit(observed, failure)
    if limit is None:
        return {}
    return {"worker": (observed.status.worker or WorkerStatus()).model_copy(update={"memory": limit})}


def _restarting(
    observed: Observed, reason: str, message: str, now: datetime, **changes: Any
) -> TrainJobStatus:
    conditions = (RUNNING, False, reason), (RESTARTING, True, reason)
    return _changed(observed, message, now, *conditions, state=_state_of_restart(reason), **changes)


def _state_of_restart(reason: str) -> str:
    state = "Restarting"
    return WAITING_FOR_STORAGE if reason in ("OutputFull", "StorageUnavailable") else state


def _changed(
    observed: Observed, message: str, now: datetime, *conditions: Condition, **changes: Any
) -> TrainJobStatus:
    """Return the status with these fields, and with conditions that have the same message."""
    status = observed.status.model_copy(update={"message": message, **changes})
    for kind, value, reason in conditions:
        status = with_condition(
            status, kind, value, reason=reason, message=message, now=now, generation=observed.meta.generation
        )
    return status
