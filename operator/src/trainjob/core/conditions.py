"""Conditions by Kubernetes' rules: one of each type, its time changes only when its status does."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from trainjob.api import Condition, TrainJobStatus

RUNNING = "Running"
RESTARTING = "Restarting"
SUSPENDED = "Suspended"
SUCCESS_CRITERIA_MET = "SuccessCriteriaMet"
"""Job's word: training has finished, the evaluator is still at it."""
FAILURE_TARGET = "FailureTarget"
"""Job's word: the job is going to be Failed as soon as none of its pods runs."""
COMPLETE = "Complete"
FAILED = "Failed"


def find_condition(status: TrainJobStatus, kind: str) -> Condition | None:
    """Return the condition of this type, or None."""
    return next((c for c in status.conditions if c.type == kind), None)


def is_true(status: TrainJobStatus, kind: str) -> bool:
    """Tell whether the condition is there and `True`."""
    found = find_condition(status, kind)
    return found is not None and found.status == "True"


def is_finished(status: TrainJobStatus) -> bool:
    """Tell whether the job has ended, well or badly: nothing happens to it any more."""
    return is_true(status, COMPLETE) or is_true(status, FAILED)


def with_condition(
    status: TrainJobStatus,
    kind: str,
    value: bool,
    *,
    reason: str,
    message: str,
    now: datetime,
    generation: int,
) -> TrainJobStatus:
    """Return the status with this condition set; an unchanged one keeps its time and its place."""
    old = find_condition(status, kind)
    text: Literal["True", "False"] = "True" if value else "False"
    since = old.last_transition_time if old is not None and old.status == text else now
    new = Condition(
        type=kind,
        status=text,
        reason=reason,
        message=message,
        last_transition_time=since,
        observed_generation=generation,
    )
    if old is None:
        conditions = [*status.conditions, new]
    else:
        conditions = [new if c.type == kind else c for c in status.conditions]
    return status.model_copy(update={"conditions": conditions})


def active_since(status: TrainJobStatus, moment: datetime) -> datetime:
    """Return from when on a time limit counts: as for a Job, it starts anew when a suspended job goes on."""
    held = find_condition(status, SUSPENDED)
    return max(moment, held.last_transition_time) if held is not None else moment
