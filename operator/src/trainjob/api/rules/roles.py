"""Roles and their counts, and `spec.managedBy`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainjob.api.errors import FieldError, mapping_at, value_at
from trainjob.api.fields import as_whole_number
from trainjob.api.rules.rule import Rule
from trainjob.api.types import count_raw_roles

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_MANAGER = f"^{_LABEL}([.]{_LABEL})*/[A-Za-z0-9/._~%!$&()*+,;=:-]+$"

MIN_REPLICAS = Rule(
    at="spec.worker",
    cel="!has(self.minReplicas) || self.minReplicas <= self.replicas",
    message="must not be more than replicas",
    field_path=".minReplicas",
)
PS_WITHOUT_CHIEF = Rule(
    at="spec",
    cel="!has(self.ps) || has(self.chief)",
    message='required with ps, since it coordinates ParameterServer training; add "chief: {}"',
    field_path=".chief",
)
MANAGED_BY = Rule(
    at="spec.managedBy",
    cel=f"self.matches('{_MANAGER}')",
    message='must be a domain, a slash and a path, such as "kueue.x-k8s.io/multikueue"',
)

RULES = (MIN_REPLICAS, PS_WITHOUT_CHIEF, MANAGED_BY)


def check(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Check counts and roles against each other, and `spec.managedBy`."""
    spec = mapping_at(raw, "spec")
    least = as_whole_number(value_at(spec, "worker", "minReplicas"))
    counts = count_raw_roles(raw)
    if counts and isinstance(least, int) and least > counts.worker:
        yield FieldError(
            "spec.worker.minReplicas", f"{MIN_REPLICAS.message}, which is {counts.worker}; got {least}"
        )
    if "ps" in spec and "chief" not in spec:
        yield FieldError("spec.chief", PS_WITHOUT_CHIEF.message)
    manager = spec.get("managedBy")
    if isinstance(manager, str) and manager and not re.fullmatch(_MANAGER, manager):
        yield FieldError("spec.managedBy", MANAGED_BY.message)
