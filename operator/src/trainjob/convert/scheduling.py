"""`schedulingPolicy`: what it asks of a gang scheduler, and what a TrainJob has instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainjob.api.wording import shown
from trainjob.convert.ledger import Ledger
from trainjob.convert.run_policy import Field

_NO_GROUP = "left out: no PodGroup is made"
_NOTES = {
    "minAvailable": f"{_NO_GROUP}; all replicas are created at once, and wait for each other",
    "minResources": f"{_NO_GROUP}; a ResourceQuota of the namespace limits what jobs take",
    "queue": f"{_NO_GROUP}; name the queue by label or annotation in the pod template",
    "scheduleTimeoutSeconds": f"{_NO_GROUP}; spec.startTimeoutSeconds is how long replicas may take to meet",
}


def priority_class(policy: Field, ledger: Ledger) -> str | None:
    """Return the job's priority class, for pods that name none; note the rest of the scheduling policy."""
    if policy.value is None:
        return None
    if not isinstance(policy.value, Mapping):
        ledger.refuse(policy.path, f"must be an object, got {shown(policy.value)}")
        return None
    for key, value in policy.value.items():
        if key != "priorityClass" and value is not None:
            unknown = "left out: it is no field of a TFJob's scheduling policy"
            ledger.note((*policy.path, key), _NOTES.get(key, unknown))
    name = policy.value.get("priorityClass")
    if name in (None, ""):
        return None
    path = (*policy.path, "priorityClass")
    if not isinstance(name, str):
        ledger.refuse(path, f"must be a string, got {shown(name)}")
        return None
    ledger.note(
        path, "becomes priorityClassName of the pods whose template has none, instead of a PodGroup's"
    )
    return name


def set_priority_class(template: dict[str, Any], name: str) -> None:
    """Give the pods this priority class unless their template names one."""
    pod = template.get("spec")
    if isinstance(pod, dict) and pod.get("priorityClassName") in (None, ""):
        pod["priorityClassName"] = name
