"""Parsing: from plain JSON to the typed model, or to the list of all mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from trainjob.api import rules
from trainjob.api.errors import (
    FieldError,
    InvalidTrainJob,
    fields_by_alias,
    format_path,
    model_of,
    say,
    shown,
)
from trainjob.api.rules import size
from trainjob.api.status import TrainJobStatus
from trainjob.api.types import TrainJob

_ROLES = ("worker", "chief", "ps", "evaluator")


def parse(raw: Mapping[str, Any], *, has_begun: bool = False) -> TrainJob:
    """Check and parse a TrainJob that was read from YAML, JSON or the API server.

    Args:
        raw: the object.
        has_begun: whether it was accepted before, perhaps by a version without limits on its size.

    Raises:
        InvalidTrainJob: it breaks rules; the error lists all of them.
    """
    if not isinstance(raw, Mapping):
        raise InvalidTrainJob([FieldError("", f"must be an object, got {shown(raw)}")])
    if not has_begun and (too_large := list(size.find_too_large(raw))):
        raise InvalidTrainJob(too_large)  # first, since all other checks read all of its bytes
    meant = _without_nulls(raw, TrainJob)
    meant["status"] = _readable_status(meant.get("status"))
    errors = list(_empty_roles(raw))
    job: TrainJob | None = None
    try:
        job = TrainJob.model_validate(meant, by_alias=True, by_name=False)
    except ValidationError as problem:
        found = problem.errors(include_url=False)
        errors += [FieldError(format_path(_steps(error["loc"])), say(TrainJob, error)) for error in found]
    errors += rules.check(meant)
    errors += [] if has_begun else size.check(meant)
    if errors or job is None:
        raise InvalidTrainJob(dict.fromkeys(errors))
    return job


def _without_nulls(raw: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """Drop fields that are null, as the API server does; fields that the model doesn't know are kept."""
    fields = fields_by_alias(model)
    kept: dict[str, Any] = {}
    for key, value in raw.items():
        field = fields.get(key) if isinstance(key, str) else None
        if field and value is None:
            continue
        inner = model_of(field) if field else None
        kept[key] = _without_nulls(value, inner) if inner and isinstance(value, Mapping) else value
    return kept


def _empty_roles(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    # People read an empty `chief:` as a chief; Kubernetes reads it as no chief.
    spec = raw.get("spec")
    for role in _ROLES:
        if isinstance(spec, Mapping) and role in spec and spec[role] is None:
            yield FieldError(f"spec.{role}", f'is empty; write "{role}: {{}}" for the defaults, or remove it')


def _readable_status(status: object) -> dict[str, Any]:
    """Return the readable parts of a status: an old or damaged status must not stop the job."""
    if not isinstance(status, Mapping) or not status:
        return {}
    readable = dict(status)
    try:
        TrainJobStatus.model_validate(readable, by_alias=True, by_name=False)
    except ValidationError as problem:
        for error in problem.errors(include_url=False):
            readable.pop(error["loc"][0] if error["loc"] else "", None)
    return readable


def _steps(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    # pydantic marks a wrong key of a mapping by this last step.
    return location[:-1] if location and location[-1] == "[key]" else location
