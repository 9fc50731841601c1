"""The job's name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainjob.api.errors import FieldError, value_at
from trainjob.api.rules.rule import Rule
from trainjob.api.types import count_raw_roles, room_for_name

NAME_FORM = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
_FORM_MESSAGE = (
    'must start with a lowercase letter, hold only lowercase letters, digits and "-",'
    " and end with a letter or digit"
)
# `room_for_name` in CEL: 63, less "-evaluator-0" or "-worker-<last index>", a dash and 8 hex digits. The
# API server accepts a message only if its length is bounded, so the message has the numbers as text.
_ROOM = "(self.spec.evaluator.replicas > 0 ? 42 : 46 - size(string(self.spec.worker.replicas - 1)))"
_ROOM_AS_TEXT = (
    "(self.spec.evaluator.replicas > 0 ? '42' : self.spec.worker.replicas <= 10 ? '45'"
    " : self.spec.worker.replicas <= 100 ? '44' : '43')"
)
_ROOM_MESSAGE = "must have at most {} characters, so that the names of its pods fit in 63"

FORM = Rule(
    at="",
    cel=f"self.metadata.name.matches('{NAME_FORM}')",
    message=f"metadata.name: {_FORM_MESSAGE}",
)
LENGTH = Rule(
    at="",
    cel=f"size(self.metadata.name) <= {_ROOM}",
    message="metadata.name: must have fewer characters, so that the names of its pods fit in 63",
    message_expression="'metadata.name: " + _ROOM_MESSAGE.format(f"' + {_ROOM_AS_TEXT} + '") + "'",
)

RULES = (FORM, LENGTH)


def check(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Check `metadata.name`."""
    name = value_at(raw, "metadata", "name")
    if not isinstance(name, str):
        return
    if not re.fullmatch(NAME_FORM, name):
        yield FieldError("metadata.name", _FORM_MESSAGE)
    counts = count_raw_roles(raw)
    if counts and len(name) > (room := room_for_name(counts)):
        yield FieldError("metadata.name", f"{_ROOM_MESSAGE.format(room)}; got {len(name)}")
