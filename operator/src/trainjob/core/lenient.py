"""Values out of JSON that somebody else wrote: of an unexpected type they count as absent."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from trainjob.api.group import INT32_MAX
from trainjob.core.wording import printable

INT64_MAX = 2**63 - 1
"""The API server stores no larger number."""

LONGEST_NAME = 253
"""Of an object, by Kubernetes' rules."""


def integer(value: object) -> int | None:
    """Return a whole number that a status can hold, or None."""
    good = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= INT64_MAX
    return value if good and isinstance(value, int) else None


def mapping(value: object) -> Mapping[str, Any]:
    """Return an object, empty if it is none."""
    return value if isinstance(value, Mapping) else {}


def count(value: object) -> int:
    """Return a number of times, from 0 to the largest that a status has a field for."""
    return min(max(integer(value) or 0, 0), INT32_MAX)


def finite(value: object) -> float | None:
    """Return a number that JSON can hold as a float, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) > INT64_MAX:
        return None
    return float(value) if math.isfinite(value) else None


def text(value: object, longest: int = LONGEST_NAME) -> str:
    """Return the beginning of a text, on one line, without what drives a terminal."""
    if not isinstance(value, str):
        return ""
    if len(value) <= longest and value.isprintable():
        return value
    return printable(" ".join(value[: 4 * longest].splitlines()).replace("\t", " "))[:longest]


def tail(value: object, longest: int) -> str:
    """Return the end of a log, without what drives a terminal; lines stay lines."""
    return printable(value[-4 * longest :])[-longest:] if isinstance(value, str) else ""


def known(raw: Mapping[str, Any], readers: Mapping[str, Callable[[Any], object]]) -> dict[str, Any]:
    """Return those keys of a JSON object that there is a reader for, each with what it makes of the value."""
    return {key: read(raw[key]) for key, read in readers.items() if key in raw}
