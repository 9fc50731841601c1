"""Every change of a job's status that a decision makes, one function each.

The counts and figures that merely follow the pods are `overview`'s part.
"""

from __future__ import annotations

from datetime import datetime

from trainjob.api import TrainJobStatus, WorkerStatus
from trainjob.core import conditions as c
from trainjob.core.budget import alike, restarts_of
from trainjob.core.failure import Failure, lost_steps, reached_step, to_status
from trainjob.core.observed import Observed
from trainjob.core.suspects import nodes_to_keep

ENDED_WELL = "Complete"
START_TIMEOUT = "StartTimeout"


def start(observed: Observed, message: str, now: datetime) -> TrainJobStatus:
    """The job has been seen for the first time: its clock starts."""
    status = observed.status.model_copy(
        update={"start_time": now, "attempt": observed.attempt, "state": "Pending", "message": message}
    )
    return _set(observed, status, c.RUNNING, False, "Starting", message, now)


def wait(observed: Observed, reason: str, message: str, now: datetime) -> TrainJobStatus:
    """Not all training replicas run yet."""
    restarting = c.is_true(observed.status, c.RESTARTING)
    status = observed.status.model_copy(
        update={"state": "Restarting" if restarting else "Pending", "message": message}
    )
    return _set(observed, status, c.RUNNING, False, reason, message, now)


def run(observed: Observed, message: str, now: datetime) -> TrainJobStatus:
    """All training replicas run."""
    status = observed.status.model_copy(update={"state": "Running", "message": message})
    if c.is_true(status, c.RESTARTING):
        status = _set(observed, status, c.RESTARTING, False, "Restarted", message, now)
    return _set(observed, status, c.RUNNING, True, "AllReplicasRunning", message, now)


def restart(
    observed: Observed, failure: Failure, message: str, now: datetime, *, replaced: tuple[str, ...] = ()
) -> TrainJobStatus:
    """Training is started anew; a failure further on than the last one resets the back-off."""
    known = restarts_of(observed)
    charged = failure.cause.charged
    furthest = -1 if known.furthest_step is None else known.furthest_step
    reached = reached_step(observed, failure)
    progressed = reached is not None and reached > furthest
    changes = {
        "charged": known.charged + int(charged),
        "uncharged": known.uncharged + int(not charged),
        "furthest_step": reached if progressed else known.furthest_step,
        "since_progress": 1 if progressed else known.since_progress + 1,
        "steps_lost": known.steps_lost + lost_steps(observed, failure),
        "same": alike(observed, failure),
        "last_time": now,
        "next_time": None,
        "replaced": replaced,
        "diverged_nodes": nodes_to_keep(observed, failure),
    }
    status = observed.status.model_copy(
        update={
            "state": "Restarting",
            "message": message,
            "attempt": observed.attempt + 1,
            "first_failure": to_status(failure, message),
            "restarts": known.model_copy(update=changes),
        }
    )
    status = _set(observed, status, c.RUNNING, False, failure.reason, message, now)
    return _set(observed, status, c.RESTARTING, True, failure.reason, message, now)


def restarted_in_place(observed: Observed, failure: Failure, message: str, now: datetime) -> TrainJobStatus:
    """The agents have started training anew, or are about to: it runs again once they say so."""
    lost = observed.status.restarts.steps_lost + lost_steps(observed, failure)
    changes = {
        "steps_lost": lost,
        "same": alike(observed, failure),
        "last_time": now,
        "next_time": None,
        "diverged_nodes": nodes_to_keep(observed, failure),
    }
    status = observed.status.model_copy(
        update={
            "state": "Restarting",
            "message": message,
            "attempt": observed.attempt,
            "first_failure": to_status(failure, message),
            "restarts": restarts_of(observed).model_copy(update=changes),
        }
    )
    status = _set(observed, status, c.RUNNING, False, failure.reason, message, now)
    return _set(observed, status, c.RESTARTING, True, failure.reason, message, now)


def restarted_alone(observed: Observed, failure: Failure, message: str, now: datetime) -> TrainJobStatus:
    """The agents have started one process again while the others train on: that is no restart of training."""
    changes = {"same": alike(observed, failure), "last_time": now}
    return observed.status.model_copy(
        update={
            "message": message,
            "attempt": observed.attempt,
            "first_failure": to_status(failure, message),
            "restarts": restarts_of(observed).model_copy(update=changes),
        }
    )


def resize(
    observed: Observed, message: str, now: datetime, *, without: tuple[str, ...] = ()
) -> TrainJobStatus:
    """Training starts anew with another number of workers, nobody's fault; some may be missing."""
    workers = observed.status.worker or WorkerStatus()
    status = observed.status.model_copy(
        update={
            "state": "Restarting",
            "message": message,
            "attempt": observed.attempt + 1,
            "restarts": observed.status.restarts.model_copy(update={"next_time": None}),
            "worker": workers.model_copy(
                update={"size": observed.job.spec.worker.replicas, "without": without}
            ),
        }
    )
    status = _set(observed, status, c.RUNNING, False, "Resized", message, now)
    return _set(observed, status, c.RESTARTING, True, "Resized", message, now)


def give_way(observed: Observed, message: str, now: datetime, *, until: datetime) -> TrainJobStatus:
    """Not all replicas could be had in time: those that are there make room, and all try again later."""
    known = restarts_of(observed)
    changes = {
        "uncharged": known.uncharged + 1,
        "last_time": now,
        "next_time": until,
        "replaced": tuple(p.name for p in observed.training_pods),
    }
    status = observed.status.model_copy(
        update={
            "state": "Restarting",
            "message": message,
            "attempt": observed.attempt + 1,
            "restarts": known.model_copy(update=changes),
        }
    )
    status = _set(observed, status, c.RUNNING, False, START_TIMEOUT, message, now)
    return _set(observed, status, c.RESTARTING, True, START_TIMEOUT, message, now)


def leave_alone(observed: Observed, reason: str, message: str, now: datetime) -> TrainJobStatus:
    """Its pods run on, and nothing is done about the job any more."""
    status = observed.status.model_copy(update={"message": message})
    return _set(observed, status, c.RUNNING, c.is_true(status, c.RUNNING), reason, message, now)


def suspend(observed: Observed, message: str, now: datetime, *, reached: bool) -> TrainJobStatus:
    """The user suspended the job; `reached` once none of its pods runs any more."""
    status = observed.status.model_copy(update={"state": "Suspended", "message": message})
    status = _set(observed, status, c.RUNNING, False, "Suspended", message, now)
    reason = "Suspended" if reached else "Suspending"
    return _set(observed, status, c.SUSPENDED, reached, reason, message, now)


def resume(observed: Observed, message: str, now: datetime) -> TrainJobStatus:
    """The user let a suspended job go on: a new gang, from the last checkpoint, if there was one before."""
    before = observed.status.attempt
    status = observed.status.model_copy(
        update={
            "state": "Evaluating" if c.is_true(observed.status, c.SUCCESS_CRITERIA_MET) else "Pending",
            "message": message,
            "attempt": observed.attempt + 1 if before else None,
            "restarts": observed.status.restarts.model_copy(
                update={"next_time": None, "replaced": tuple(p.name for p in observed.training_pods)}
            ),
        }
    )
    return _set(observed, status, c.SUSPENDED, False, "Resumed", message, now)


def meet_success_criteria(observed: Observed, message: str, now: datetime) -> TrainJobStatus:
    """Training has finished; the evaluator may still be at it."""
    status = observed.status.model_copy(update={"state": "Evaluating", "message": message})
    status = _set(observed, status, c.RUNNING, False, "TrainingFinished", message, now)
    return _set(observed, status, c.SUCCESS_CRITERIA_MET, True, "TrainingFinished", message, now)


def complete(observed: Observed, message: str, now: datetime) -> TrainJobStatus:
    """The job has ended well."""
    status = observed.status.model_copy(
        update={"state": ENDED_WELL, "message": message, "completion_time": now}
    )
    status = _set(observed, status, c.RUNNING, False, "Finished", message, now)
    return _set(observed, status, c.COMPLETE, True, "TrainingFinished", message, now)


def target_failure(
    observed: Observed, reason: str, message: str, now: datetime, failure: Failure | None = None
) -> TrainJobStatus:
    """The job is going to fail: on record before its pods are stopped, so that the reason outlives them."""
    changes: dict[str, object] = {
        "state": "Failing",
        "message": message,
        "restarts": restarts_of(observed),
    }
    if failure is not None:
        changes["first_failure"] = to_status(failure, message)
    status = observed.status.model_copy(update=changes)
    status = _set(observed, status, c.RUNNING, False, reason, message, now)
    return _set(observed, status, c.FAILURE_TARGET, True, reason, message, now)


def fail(observed: Observed, reason: str, message: str, now: datetime) -> TrainJobStatus:
    """The job has ended badly and none of its pods runs."""
    status = observed.status.model_copy(
        update={"state": "Failed", "message": message, "completion_time": now}
    )
    if c.is_true(status, c.RESTARTING):
        status = _set(observed, status, c.RESTARTING, False, reason, message, now)
    status = _set(observed, status, c.RUNNING, False, reason, message, now)
    return _set(observed, status, c.FAILED, True, reason, message, now)


def _set(
    observed: Observed,
    status: TrainJobStatus,
    kind: str,
    value: bool,
    reason: str,
    message: str,
    now: datetime,
) -> TrainJobStatus:
    return c.with_condition(
        status, kind, value, reason=reason, message=message, now=now, generation=observed.meta.generation
    )
