"""The job's name, roles and counts, `managedBy`, fields that need agents, and what can't change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trainjob.api.errors import FieldError, fields_by_alias, value_at
from trainjob.api.fields import as_whole_number
from trainjob.api.rules.rule import Rule, fields_are, find_broken, is_positive_quantity, text_is
from trainjob.api.types import TrainJobSpec, WorkerRole, count_raw_roles, room_for_name

# The job's name, its roles and their counts, `managedBy`, and fields that need agents.


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
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_MANAGER = f"^{_LABEL}([.]{_LABEL})*/[A-Za-z0-9/._~%!$&()*+,;=:-]+$"

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
MIN_REPLICAS = Rule(
    at="spec.worker",
    cel="!has(self.minReplicas) || self.minReplicas <= self.replicas",
    message="must not be more than replicas",
    field_path=".minReplicas",
)


def _needs_agents(field: str, is_asked: str) -> Rule:
    """Return the rule for a field that would have no effect without the agents of InPlace."""
    return Rule(
        at="spec",
        cel=f"self.restartStrategy == 'InPlace' || !{is_asked}",
        message="needs restartStrategy InPlace: with Recreate pods have no agents",
        field_path=f".{field}",
        holds=fields_are(
            lambda spec: (
                spec.get("restartStrategy") != "Recreate"
                or value_at(spec, *field.split(".")) in (None, False)
            )
        ),
    )


RULES = (
    FORM,
    LENGTH,
    MIN_REPLICAS,
    Rule(
        at="spec",
        cel="!has(self.ps) || has(self.chief)",
        message='required with ps, since it coordinates ParameterServer training; add "chief: {}"',
        field_path=".chief",
        holds=fields_are(lambda spec: "ps" not in spec or "chief" in spec),
    ),
    Rule(
        at="spec.managedBy",
        cel=f"self.matches('{_MANAGER}')",
        message='must be a domain, a slash and a path, such as "kueue.x-k8s.io/multikueue"',
        holds=text_is(lambda manager: re.fullmatch(_MANAGER, manager)),
    ),
    is_positive_quantity("spec.worker.maxAllowed.memory"),
    _needs_agents("warmStandby", "self.warmStandby"),
    _needs_agents("stallTimeoutSeconds", "has(self.stallTimeoutSeconds)"),
    _needs_agents("worker.minReplicas", "has(self.worker.minReplicas)"),
    _needs_agents("code", "has(self.code)"),
    _needs_agents("output.uri", "has(self.output.uri)"),
)


def check(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Check the rules of this module."""
    counts = count_raw_roles(raw)
    name = value_at(raw, "metadata", "name")
    if isinstance(name, str):
        prefix, field, added = value_at(raw, "metadata", "generateName"), "metadata.name", ""
        if isinstance(prefix, str) and name.startswith(prefix):
            field = "metadata.generateName"
            added = f" with the {len(name) - len(prefix)} that are added"
        if not re.fullmatch(NAME_FORM, name):
            yield FieldError(field, _FORM_MESSAGE)
        if counts and len(name) > (room := room_for_name(counts)):
            yield FieldError(field, f"{_ROOM_MESSAGE.format(room)}; got {len(name)}{added}")
    least = as_whole_number(value_at(raw, "spec", "worker", "minReplicas"))
    if counts and isinstance(least, int) and least > counts.worker:
        yield FieldError(
            "spec.worker.minReplicas", f"{MIN_REPLICAS.message}, which is {counts.worker}; got {least}"
        )
    yield from find_broken(RULES, raw)


# Immutability: after creation, only a few fields of the spec can change.


# `worker` has its own rules.
MUTABLE_IN_SPEC = frozenset({"suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "worker"})
MUTABLE_IN_WORKER = frozenset({"replicas", "maxAllowed"})

HOLDING_KUBERNETES_OBJECTS = frozenset(
    {"template", "resources", "env", "tolerations", "affinity", "chief", "ps", "evaluator", "output"}
)
"""Compared both ways: `==` ignores fields of its left side that the schema lacks (`codegen/crd.py`)."""

IMMUTABLE = "is immutable; delete the job and create it again"


def _unchanged(at: str, model: type[BaseModel], mutable: frozenset[str]) -> Iterator[Rule]:
    # The API server's cost estimate for `self.?x == oldSelf.?x` is over its limit. So an optional field is
    # compared only if both objects have it, and one more rule forbids to add or remove such fields.
    fixed = _fixed_fields(model, mutable)
    optional = [name for name, field in fixed.items() if field.default is None]
    for name in fixed:
        absent = f"!has(self.{name}) || !has(oldSelf.{name}) || " if name in optional else ""
        same = f"self.{name} == oldSelf.{name}"
        if name in HOLDING_KUBERNETES_OBJECTS:
            same += f" && oldSelf.{name} == self.{name}"
        yield Rule(at=at, cel=f"{absent}{same}", message=IMMUTABLE, field_path=f".{name}")
    now, before = (
        f"[{', '.join(f'has({owner}.{field})' for field in optional)}]" for owner in ("self", "oldSelf")
    )
    yield Rule(
        at=at,
        cel=f"{now} == {before}",
        message=_cannot_be_added(optional),
    )


def _fixed_fields(model: type[BaseModel], mutable: frozenset[str]) -> dict[str, FieldInfo]:
    return {name: field for name, field in fields_by_alias(model).items() if name not in mutable}


def _cannot_be_added(optional: list[str]) -> str:
    return f"{', '.join(optional)} can't be added or removed; delete the job and create it again"


def find_immutable(before: TrainJobSpec, after: TrainJobSpec) -> Iterator[FieldError]:
    """Yield an error for each change that `IMMUTABLE_RULES` forbid: the same in Python."""
    yield from _find_changed("spec", before, after, MUTABLE_IN_SPEC)
    yield from _find_changed("spec.worker", before.worker, after.worker, MUTABLE_IN_WORKER)


def _find_changed(
    at: str, before: BaseModel, after: BaseModel, mutable: frozenset[str]
) -> Iterator[FieldError]:
    model = type(before)
    attributes = {field.alias or name: name for name, field in model.model_fields.items()}
    fixed = _fixed_fields(model, mutable)
    optional = [name for name, field in fixed.items() if field.default is None]
    pairs = {name: (getattr(before, attributes[name]), getattr(after, attributes[name])) for name in fixed}
    for name, (old, new) in pairs.items():
        if old != new and not (name in optional and None in (old, new)):
            yield FieldError(f"{at}.{name}", IMMUTABLE)
    if any((pairs[name][0] is None) != (pairs[name][1] is None) for name in optional):
        yield FieldError(at, _cannot_be_added(optional))


IMMUTABLE_RULES = (
    *_unchanged("spec", TrainJobSpec, MUTABLE_IN_SPEC),
    *_unchanged("spec.worker", WorkerRole, MUTABLE_IN_WORKER),
)
