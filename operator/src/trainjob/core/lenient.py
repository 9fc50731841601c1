"""Values out of JSON that somebody else wrote: of an unexpected type they count as absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

INT64_MAX = 2**63 - 1
"""The API server stores no larger number."""


def integer(value: object) -> int | None:
    """Return a whole number that a status can hold, or None."""
    good = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= INT64_MAX
    return value if good and isinstance(value, int) else None


def mapping(value: object) -> Mapping[str, Any]:
    """Return an object, empty if it is none."""
    return value if isinstance(value, Mapping) else {}
