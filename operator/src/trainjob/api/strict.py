"""What commands check before a job is stored: its pod templates by Kubernetes' schema, images, settings.

The controller doesn't: it leaves templates to the API server, which may be newer than the schema here.
"""

from __future__ import annotations

import json
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from trainjob.api.constants import INT32_MAX, TRAINER_CONTAINER
from trainjob.api.errors import (
    FieldError,
    InvalidTrainJob,
    Step,
    fields_by_alias,
    format_path,
    mapping_at,
    missing_space,
    objects_at,
    shown,
    suggestion,
    value_at,
)
from trainjob.api.fields import as_whole_number, read_quantity
from trainjob.api.parsing import parse
from trainjob.api.rules.template import ROLES
from trainjob.api.types import TrainJob, TrainJobSpec
from trainjob_trainer.contract.environment import SETTING, SETTINGS

Path = tuple[Step, ...]

# The checks, and what they are of.


_OF_A_ROLE = {
    "template": "PodTemplateSpec",
    "resources": "ResourceRequirements",
    "env": ["EnvVar"],
    "tolerations": ["Toleration"],
    "affinity": "Affinity",
}
_PARTS: Mapping[Path, Any] = {
    ("spec", "template"): "PodTemplateSpec",
    **{("spec", role, field): kind for role in ROLES for field, kind in _OF_A_ROLE.items()},
    ("spec", "output", "csi"): "CSIVolumeSource",
    ("spec", "output", "emptyDir"): "EmptyDirVolumeSource",
    ("spec", "output", "ephemeral"): "EphemeralVolumeSource",
}
"""The parts of a TrainJob that are Kubernetes' own, with their types."""

_IMAGE = (
    'required: Kubernetes starts no container without one; for example "image: ghcr.io/acme/digits:1"'
    " (only `trainjob run` needs none)"
)


def parse_strictly(raw: Mapping[str, Any], *, needs_image: bool = True) -> TrainJob:
    """Check and parse a TrainJob as `parse` does, and everything else that needs no cluster.

    Args:
        raw: the object.
        needs_image: whether a container without an image is an error.

    Raises:
        InvalidTrainJob: it breaks rules; the error lists all of them.
    """
    job, errors = None, tuple[FieldError, ...]()
    try:
        job = parse(raw)
    except InvalidTrainJob as invalid:
        errors = invalid.errors
    reported = {error.path for error in errors}
    more = [error for error in _find_errors(raw, needs_image=needs_image) if error.path not in reported]
    if job is None or more:
        raise InvalidTrainJob(dict.fromkeys((*errors, *more)))
    return job


def _find_errors(raw: Mapping[str, Any], *, needs_image: bool) -> Iterator[FieldError]:
    job = _Outer("spec", frozenset(fields_by_alias(TrainJobSpec)))
    for path, kind in _PARTS.items():
        yield from _check(value_at(raw, *path), kind, path, (job,))
    for place in (("spec",), *(("spec", role) for role in ROLES)):
        yield from _check_settings(raw, (*place, "env"))
        for kind in ("containers", "initContainers"):
            path = (*place, "template", "spec", kind)
            for index, container in objects_at(raw, *path):
                if needs_image and container.get("image") in (None, ""):
                    yield FieldError(format_path((*path, index, "image")), _IMAGE)
                if kind == "containers" and container.get("name") == TRAINER_CONTAINER:
                    yield from _check_settings(raw, (*path, index, "env"))


def _check_settings(raw: object, path: Path) -> Iterator[FieldError]:
    for index, variable in objects_at(raw, *path):
        name = variable.get("name")
        if not isinstance(name, str) or not name.startswith(SETTING) or name in SETTINGS:
            continue
        # Any other name, such as TRAIN_DATA, is the script's own.
        if near := suggestion(name, SETTINGS, prefix=SETTING, cutoff=0.8):
            yield FieldError(
                format_path((*path, index, "name")),
                f"{shown(name)} is no setting of the trainer, whose variables begin with {SETTING}"
                f"{near} If it is your script's own, set it in the image or the command",
            )


# Values against Kubernetes' types. Null means absent, as for the API server.


class _Outer(NamedTuple):
    """An object that holds the value: its path, and the fields that it can have."""

    path: str
    fields: frozenset[str]


@cache
def _schema() -> Mapping[str, Any]:
    """Return what `codegen/pod_schema.py` has written."""
    return json.loads(pkgutil.get_data(__name__, "pod_schema.json") or b"")  # type: ignore[no-any-return]


def _check(value: object, kind: Any, path: Path, outer: tuple[_Outer, ...]) -> Iterator[FieldError]:
    """Yield the errors of a value; `pod_schema_text` describes `kind`, `outer` has the innermost first."""
    if value is None:
        return
    if isinstance(kind, list):
        yield from _check_list(value, kind[0], path, outer)
    elif "enum" in kind and not isinstance(kind, str):
        if value not in ("", *kind["enum"]):
            known = f"{', '.join(map(shown, kind['enum']))} (of Kubernetes {_schema()['kubernetes']})"
            problem = f"must be one of {known}, got {shown(value)}{suggestion(value, kind['enum'])}"
            yield FieldError(format_path(path), problem)
    elif isinstance(kind, str) and (check := _SCALARS.get(kind)):
        if problem := check(value):
            yield FieldError(format_path(path), problem)
    elif not isinstance(value, Mapping):
        problem = f"must be an object, got {shown(value)}{missing_space(value)}"
        yield FieldError(format_path(path), problem)
    elif isinstance(kind, str):
        yield from _check_object(value, kind, path, outer)
    else:
        for key, item in value.items():
            yield from _check(item, kind["*"], (*path, str(key)), ())


def _check_list(value: object, kind: Any, path: Path, outer: tuple[_Outer, ...]) -> Iterator[FieldError]:
    if not isinstance(value, list):
        yield FieldError(format_path(path), f"must be a list, got {shown(value)}")
        return
    for index, item in enumerate(value):
        if item is None:
            yield FieldError(format_path((*path, index)), "must not be empty; remove it")
        yield from _check(item, kind, (*path, index), outer)


def _check_object(
    value: Mapping[str, Any], kind: str, path: Path, outer: tuple[_Outer, ...]
) -> Iterator[FieldError]:
    fields: Mapping[str, Any] = _schema()["types"][kind]["fields"]
    for name in _schema()["types"][kind]["required"]:
        if value.get(name) is None:
            yield FieldError(format_path((*path, name)), "required")
    inner = (_Outer(format_path(path), frozenset(fields)), *outer)
    for name, item in value.items():
        if name in fields:
            yield from _check(item, fields[name], (*path, name), inner)
        else:
            problem = f"unknown field of {kind} in Kubernetes {_schema()['kubernetes']}"
            yield FieldError(format_path((*path, str(name))), problem + _where(name, fields, outer))


def _where(name: object, fields: Mapping[str, Any], outer: tuple[_Outer, ...]) -> str:
    """Return what may be meant by an unknown field: one of another object, or of another name."""
    if holder := next((each for each in outer if name in each.fields), None):
        return f"; it is a field of {holder.path}: indent it less"
    below = [field for field, kind in fields.items() if name in _fields_of(kind)]
    if len(below) == 1:
        return f'; it is a field of "{below[0]}": put it below that'
    return suggestion(name, tuple(fields)) or "; if your cluster is newer and knows it, use kubectl apply"


def _fields_of(kind: Any) -> Mapping[str, Any]:
    return mapping_at(_schema(), "types", kind, "fields") if isinstance(kind, str) else {}


def _check_string(value: object) -> str:
    hint = "; put it in quotes" if isinstance(value, bool | int | float) else ""
    return "" if isinstance(value, str) else f"must be a string, got {shown(value)}{hint}"


def _check_boolean(value: object) -> str:
    return "" if isinstance(value, bool) else f"must be true or false, got {shown(value)}"


def _check_integer(most: int) -> Callable[[object], str]:
    def check(value: object) -> str:
        whole = as_whole_number(value)
        if not isinstance(whole, int) or isinstance(value, bool):
            return f"must be an integer, got {shown(value)}"
        return "" if -most - 1 <= whole <= most else f"must be at most {most}, got {shown(value)}"

    return check


def _check_integer_or_string(value: object) -> str:
    good = isinstance(value, str) or (_check_integer(INT32_MAX)(value) == "")
    return "" if good else f"must be an integer or a string, got {shown(value)}"


_ALMOST = re.compile(r"([+-]?[0-9.]+) *([kmgtpe])(i?)b?(?:ytes?)?", re.IGNORECASE)


def _check_quantity(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ""
    if isinstance(value, str) and read_quantity(value) is not None:
        return ""
    hint = ', such as "500m", "2" or "2Gi"'
    if found := _ALMOST.fullmatch(value.strip()) if isinstance(value, str) else None:
        number, unit, is_binary = found[1], found[2].upper(), bool(found[3])
        decimal = f'"{number}{"k" if unit == "K" else unit}"'
        hint = f'; write "{number}{unit}i"' + ("" if is_binary else f" or {decimal}")
    return f"{shown(value)} is no quantity{hint}"


_SCALARS: Mapping[str, Callable[[object], str]] = {
    "string": _check_string,
    "boolean": _check_boolean,
    "int32": _check_integer(INT32_MAX),
    "int64": _check_integer(2**63 - 1),
    "object": lambda value: "" if isinstance(value, Mapping) else f"must be an object, got {shown(value)}",
    "IntOrString": _check_integer_or_string,
    "Quantity": _check_quantity,
}
