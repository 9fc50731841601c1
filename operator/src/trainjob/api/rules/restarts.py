"""Fields that need the agents of `restartStrategy: InPlace`; without agents they would have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainjob.api.errors import FieldError, format_path, value_at
from trainjob.api.rules.rule import Rule

_MESSAGE = "needs restartStrategy InPlace: with Recreate pods have no agents"


def _needs_agents(field: str, is_asked: str) -> Rule:
    return Rule(
        at="spec",
        cel=f"self.restartStrategy == 'InPlace' || !{is_asked}",
        message=_MESSAGE,
        field_path=f".{field}",
    )


RULES = (
    _needs_agents("warmStandby", "self.warmStandby"),
    _needs_agents("stallTimeoutSeconds", "has(self.stallTimeoutSeconds)"),
    _needs_agents("worker.minReplicas", "has(self.worker.minReplicas)"),
)


def check(raw: Mapping[str, Any]) -> Iterator[FieldError]:
    """Check that a job without agents sets no field that needs them."""
    if value_at(raw, "spec", "restartStrategy") != "Recreate":
        return
    for rule in RULES:
        path = ("spec", *rule.field_path.strip(".").split("."))
        value = value_at(raw, *path)
        if value is not None and value is not False:
            yield FieldError(format_path(path), rule.message)
