"""Conditions by Kubernetes' rules, and the status cut to the lengths and ranges of its schema."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trainjob.api import Condition, TrainJobStatus
from trainjob.api.fields import Longest
from trainjob.core.wording import printable
from trainjob_trainer.contract.reports import shorten
from trainjob_trainer.contract.wire import LARGEST_INTEGER

# Conditions by Kubernetes' rules: one of each type; its time changes only when its status does.


RUNNING = "Running"
RESTARTING = "Restarting"
SUSPENDED = "Suspended"
QUEUED = "Queued"
"""The job waits for its queue; also after an eviction."""
SUCCESS_CRITERIA_MET = "SuccessCriteriaMet"
"""As in a Kubernetes Job: training has finished, and the evaluator may still run."""
FAILURE_TARGET = "FailureTarget"
"""As in a Kubernetes Job: the job will be Failed as soon as none of its pods runs."""
TRAINS_ALONE = "TrainsAlone"
"""Each worker trains the whole model by itself: the job costs as many machines, and is no faster."""
COMPLETE = "Complete"
FAILED = "Failed"


def find_condition(status: TrainJobStatus, kind: str) -> Condition | None:
    """Return the condition of this type, or None."""
    return next((c for c in status.conditions if c.type == kind), None)


def is_true(status: TrainJobStatus, kind: str) -> bool:
    """Return whether the condition exists and is `True`."""
    found = find_condition(status, kind)
    return found is not None and found.status == "True"


def is_finished(status: TrainJobStatus) -> bool:
    """Return whether the job has completed or failed, which is final."""
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
    """Return the status with this condition set; it keeps its time if its value stays, and its position."""
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
        conditions = (*status.conditions, new)
    else:
        conditions = tuple(new if c.type == kind else c for c in status.conditions)
    return status.model_copy(update={"conditions": conditions})


def active_since(status: TrainJobStatus, moment: datetime) -> datetime:
    """Return the start of a time limit; as for a Kubernetes Job, a resumption or admission restarts it."""
    held = (find_condition(status, kind) for kind in (SUSPENDED, QUEUED))
    return max([moment, *(condition.last_transition_time for condition in held if condition is not None)])


# The status cut to the lengths and ranges of its schema: the API server refuses a status that exceeds them.
#
# A status that can't be written stops the job. So text and numbers from agents, termination messages and
# the cluster are cut to fit; what fits already is unchanged.


Model = TypeVar("Model", bound=BaseModel)
_Fit = Callable[[Any], Any]

_LARGEST_FLOAT = 1e300


def truncated(model: Model) -> Model:
    """Return the status, or a part of it, with texts and numbers cut to what its schema allows."""
    fitted = {name: fit(value) for name, fit in _fits(type(model)).items() if (value := getattr(model, name))}
    changes = {name: value for name, value in fitted.items() if value != getattr(model, name)}
    return model.model_copy(update=changes) if changes else model


@cache
def _fits(kind: type[BaseModel]) -> Mapping[str, _Fit]:
    hints = get_type_hints(kind, include_extras=True)
    fits = {name: _fit_of(hints[name]) for name in kind.model_fields}
    return {name: fit for name, fit in fits.items() if fit is not None}


def _fit_of(hint: Any, marks: tuple[Any, ...] = ()) -> _Fit | None:
    """Return a function that cuts a value of this type; None if no value can be too large."""
    inner = [argument for argument in get_args(hint) if argument not in (type(None), ...)]
    if get_origin(hint) is Annotated:
        return _fit_of(inner[0], (*inner[1:], *marks))
    if get_origin(hint) is tuple:
        return _each(_fit_of(inner[0]))
    if get_origin(hint) is dict:
        return _values(_fit_of(inner[1]))
    if len(inner) == 1:
        return _fit_of(inner[0], marks)  # an optional type
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return truncated
    return {str: _text, int: _whole, float: _float}[hint](marks) if hint in (str, int, float) else None


def _each(fit: _Fit | None) -> _Fit | None:
    return None if fit is None else lambda values: type(values)(map(fit, values))


def _values(fit: _Fit | None) -> _Fit | None:
    return None if fit is None else lambda values: {key: fit(value) for key, value in values.items()}


def _text(marks: tuple[Any, ...]) -> _Fit:
    longest = next(mark.characters for mark in marks if isinstance(mark, Longest))
    return lambda value: shorten(printable(value), longest)


def _whole(marks: tuple[Any, ...]) -> _Fit:
    bounds = [bound for mark in marks if isinstance(mark, FieldInfo) for bound in mark.metadata]
    least = next((bound.ge for bound in bounds if isinstance(bound, Ge)), -LARGEST_INTEGER)
    most = next((bound.le for bound in bounds if isinstance(bound, Le)), LARGEST_INTEGER)
    return lambda value: min(max(value, least), most)


def _float(_marks: tuple[Any, ...]) -> _Fit:
    return lambda value: min(max(value, -_LARGEST_FLOAT), _LARGEST_FLOAT) if not math.isnan(value) else 0.0
