"""How a role's pods differ from `spec.template`: in fields that a role can name, or altogether."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from trainjob.convert.templates import trainer_of

_OF_POD: dict[str, Any] = {"nodeSelector": {}, "tolerations": [], "affinity": {}}
_OF_CONTAINER: dict[str, Any] = {"resources": {}, "env": []}
"""Fields that a role can name, with the value that means none."""

_PRIORITY = "priorityClassName"
"""A role can name this one, too, but not the lack of it."""


def role_differences(base: dict[str, Any], own: dict[str, Any], role: str) -> dict[str, Any]:
    """Return the role's fields that make its pods like `own` when `spec.template` is `base`."""
    if _rest(base) != _rest(own) or (_value(base, _PRIORITY) and not _value(own, _PRIORITY)):
        return {"template": own}
    differences = {
        field: deepcopy(now)
        for field, none in {**_OF_CONTAINER, **_OF_POD, _PRIORITY: ""}.items()
        if (now := _value(own, field, none)) != _value(base, field, none)
    }
    if role == "evaluator" and _names_devices(_value(own, "resources")):
        # Without resources of its own an evaluator gets no devices of the template.
        differences["resources"] = deepcopy(_value(own, "resources"))
    return differences


def _value(template: dict[str, Any], field: str, none: Any = None) -> Any:
    holder = trainer_of(template) if field in _OF_CONTAINER else template.get("spec")
    value = holder.get(field) if isinstance(holder, dict) else None
    return none if value is None else value


def _rest(template: dict[str, Any]) -> dict[str, Any]:
    """Return the template without the fields that a role can name."""
    rest = deepcopy(template)
    pod, container = rest.get("spec"), trainer_of(rest)
    for holder, fields in ((pod, (*_OF_POD, _PRIORITY)), (container, tuple(_OF_CONTAINER))):
        for field in fields:
            if isinstance(holder, dict):
                holder.pop(field, None)
    return rest


def _names_devices(resources: Any) -> bool:
    if not isinstance(resources, dict):
        return False
    amounts = (resources.get("limits"), resources.get("requests"))
    return any("/" in str(name) for kind in amounts if isinstance(kind, dict) for name in kind)
