"""Rules beyond types and ranges.

Each module has `RULES`, for the API server, and `check`, the same in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainjob.api.errors import FieldError
from trainjob.api.rules import output, spec, template


def check(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Check a TrainJob as plain JSON of any shape; values of a wrong type are skipped."""
    for rule_set in (spec, output, template):
        yield from rule_set.check(raw)
