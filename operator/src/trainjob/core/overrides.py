"""Changes of a TrainJob from a command line: `--set FIELD=VALUE`, and arguments of the program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from trainjob.api import TRAINER_CONTAINER, InvalidTrainJob, read_value
from trainjob.api.errors import mapping_at, objects_at, shown

_STEP = re.compile(r"\.?([A-Za-z0-9_-]+)|\[([^\[\]]+)\]")
_PATH = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+|\[[^\[\]]+\])*")
_ROLES = ("worker", "chief", "ps", "evaluator")


class InvalidOverride(ValueError):
    """A field can't be set; the message says why."""


def set_field(job: dict[str, Any], assignment: str) -> None:
    """Set one field of a TrainJob, or remove it if the value is empty or null.

    A field is written as in messages: `spec.worker.replicas=4`, `metadata.labels[example.com/team]=a`,
    `spec.template.spec.containers[0].image=acme/digits:2` or, by its name, `containers[trainer].image=...`.

    Args:
        job: the TrainJob as plain JSON, which is changed.
        assignment: the field, `=`, and a value in YAML.

    Raises:
        InvalidOverride: the field or the value can't be read, or the field leads through something else than
            objects and lists.
    """
    field, separator, text = assignment.partition("=")
    if not separator or not _PATH.fullmatch(field):
        raise InvalidOverride(f"{assignment!r} is not FIELD=VALUE, such as spec.worker.replicas=4")
    try:
        value = read_value(text, source=field)
    except InvalidTrainJob as invalid:
        raise InvalidOverride("; ".join(error.message for error in invalid.errors)) from invalid
    holder: Any = job
    *above, last = [name or key for name, key in _STEP.findall(field)]
    for step in above:
        holder = _enter(holder, step, field)
    _assign(holder, last, value, field)


def replace_arguments(job: dict[str, Any], arguments: Sequence[str]) -> None:
    """Give the training container of each pod template these arguments."""
    spec = mapping_at(job, "spec")
    for holder in (spec, *(spec.get(role) for role in _ROLES)):
        pod = mapping_at(holder, "template", "spec")
        for index, container in objects_at(pod, "containers"):
            if container.get("name") == TRAINER_CONTAINER:
                pod["containers"][index]["args"] = list(arguments)


def _enter(holder: Any, step: str, field: str) -> Any:
    if isinstance(holder, list):
        return holder[_index(holder, step, field)]
    if not isinstance(holder, dict):
        raise InvalidOverride(f"{field}: {shown(holder)} has no field {step!r}")
    if holder.get(step) is None:
        holder[step] = {}
    return holder[step]


def _assign(holder: Any, step: str, value: Any, field: str) -> None:
    if isinstance(holder, list):
        index = _index(holder, step, field)
        holder[index : index + 1] = [] if value is None else [value]
    elif not isinstance(holder, dict):
        raise InvalidOverride(f"{field}: {shown(holder)} has no field {step!r}")
    elif value is None:
        holder.pop(step, None)
    else:
        holder[step] = value


def _index(items: list[Any], step: str, field: str) -> int:
    names = [str(item.get("name")) for item in items if isinstance(item, dict)]
    if step in names:
        return names.index(step)
    if step.isdecimal() and int(step) < len(items):
        return int(step)
    count = f"{len(items)} item{'' if len(items) == 1 else 's'}"
    more = f": {', '.join(names)}" if names else ""
    raise InvalidOverride(f"{field}: there is no [{step}]; the list has {count}{more}")
