"""Paths of fields in Kubernetes' style, and how to walk plain JSON along them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Step = str | int

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")


def format_path(steps: Sequence[Step]) -> str:
    """Return `spec.env[0].name`; keys that aren't plain words are bracketed: `labels[example.com/team]`."""
    path = ""
    for step in steps:
        if isinstance(step, int) or not _PLAIN_KEY.fullmatch(step):
            path += f"[{step}]"
        else:
            path += f".{step}" if path else step
    return path


def parent_path(path: str) -> str:
    """Return the path without its last step; of a single step, the empty path."""
    return path[: max(path.rfind("."), path.rfind("["), 0)]


def value_at(raw: object, *steps: Step) -> Any:
    """Return the value at `steps`, or None where it is missing or something on the way has another shape."""
    for step in steps:
        if isinstance(step, str) and isinstance(raw, Mapping):
            raw = raw.get(step)
        elif isinstance(step, int) and isinstance(raw, list) and step < len(raw):
            raw = raw[step]
        else:
            return None
    return raw


def mapping_at(raw: object, *steps: Step) -> Mapping[str, Any]:
    """Return the mapping at `steps`, or an empty one."""
    value = value_at(raw, *steps)
    return value if isinstance(value, Mapping) else {}


def objects_at(raw: object, *steps: Step) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield index and value of each mapping in the list at `steps`."""
    value = value_at(raw, *steps)
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, Mapping):
            yield index, item
