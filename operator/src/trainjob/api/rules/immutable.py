"""Immutability: after creation, only a few fields of the spec can change."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from trainjob.api.errors import fields_by_alias
from trainjob.api.rules.rule import Rule
from trainjob.api.types import TrainJobSpec, WorkerRole

# `worker` has its own rules: only `replicas` can change.
_MUTABLE_IN_SPEC = frozenset({"suspend", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "worker"})
_MUTABLE_IN_WORKER = frozenset({"replicas"})

HOLDING_KUBERNETES_OBJECTS = frozenset(
    {"template", "resources", "env", "tolerations", "affinity", "chief", "ps", "evaluator", "output"}
)
"""Compared both ways: `==` ignores fields of its left side that the schema lacks (`codegen/crd.py`)."""

MESSAGE = "is immutable; delete the job and create it anew"


def _unchanged(at: str, model: type[BaseModel], mutable: frozenset[str]) -> Iterator[Rule]:
    # The API server's cost estimate for `self.?x == oldSelf.?x` is over its limit. So an optional field is
    # compared only if both objects have it, and one more rule forbids to add or remove such fields.
    fixed = {name: field for name, field in fields_by_alias(model).items() if name not in mutable}
    optional = [name for name, field in fixed.items() if field.default is None]
    for name in fixed:
        absent = f"!has(self.{name}) || !has(oldSelf.{name}) || " if name in optional else ""
        same = f"self.{name} == oldSelf.{name}"
        if name in HOLDING_KUBERNETES_OBJECTS:
            same += f" && oldSelf.{name} == self.{name}"
        yield Rule(at=at, cel=f"{absent}{same}", message=MESSAGE, field_path=f".{name}")
    now, before = (
        f"[{', '.join(f'has({owner}.{field})' for field in optional)}]" for owner in ("self", "oldSelf")
    )
    yield Rule(
        at=at,
        cel=f"{now} == {before}",
        message=f"{', '.join(optional)} can't be added or removed; delete the job and create it anew",
    )


RULES = (
    *_unchanged("spec", TrainJobSpec, _MUTABLE_IN_SPEC),
    *_unchanged("spec.worker", WorkerRole, _MUTABLE_IN_WORKER),
)
