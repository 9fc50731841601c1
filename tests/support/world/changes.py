"""Changes to a good job by path, and its errors as a mapping."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from support.world.jobs import build_job
from trainjob.api import InvalidTrainJob, parse

REMOVED = object()
"""As a new value: the field is taken away."""

Step = str | int


def steps_of(path: str) -> tuple[Step, ...]:
    """`spec.env[0].name` as steps; a bracketed word is a key."""
    found = re.findall(r"\[([^\]]*)\]|([^.\[\]]+)", path)
    return tuple(
        int(bracketed) if bracketed.isdecimal() else bracketed or plain for bracketed, plain in found
    )


def change_job(changes: Mapping[str, Any], job: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a good job with other values at these paths; what is missing on the way is made."""
    changed = deepcopy(dict(job or build_job()))
    for path, value in changes.items():
        *way, last = steps_of(path)
        holder: Any = changed
        for step in way:
            holder = holder.setdefault(step, {}) if isinstance(step, str) else holder[step]
        if value is REMOVED:
            del holder[last]
        else:
            holder[last] = deepcopy(value)
    return changed


def errors_of(raw: Any) -> dict[str, list[str]]:
    """Return the messages by path that parsing refuses it with; none when it is accepted."""
    messages: dict[str, list[str]] = {}
    try:
        parse(raw)
    except InvalidTrainJob as invalid:
        for error in invalid.errors:
            messages.setdefault(error.path, []).append(error.message)
    return messages


def walk_values(value: Any, steps: tuple[Step, ...] = ()) -> Iterator[tuple[tuple[Step, ...], Any]]:
    """Yield every value inside a JSON value with its steps, the whole first."""
    yield steps, value
    pairs: Any = ()
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = enumerate(value)
    for step, inner in pairs:
        yield from walk_values(inner, (*steps, step))
