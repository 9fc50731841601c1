"""The pod template of one role, and the devices that its pods request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainjob.api import TRAINER_CONTAINER, TrainJobSpec
from trainjob.core.names import (
    EVALUATOR,
)

# Devices that pods request.


def is_extended_resource(name: str) -> bool:
    """Return whether a resource is a device: its name has a domain outside Kubernetes' own."""
    domain, slash, _ = name.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def count_gpus(pod: Mapping[str, Any]) -> int:
    """Return how many GPUs, of any vendor, the containers of a pod or pod template request."""
    total = 0
    for container in pod["spec"].get("containers") or ():
        resources = container.get("resources")
        limits = resources.get("limits") if isinstance(resources, Mapping) else None
        if isinstance(limits, Mapping):
            total += sum(_quantity(number) for name, number in limits.items() if name.endswith("/gpu"))
    return total


def _quantity(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        return 0


# The pod template of one role: `spec.template` or the role's own, with the role's named fields.


_POD_FIELDS = {
    "node_selector": "nodeSelector",
    "tolerations": "tolerations",
    "affinity": "affinity",
    "priority_class_name": "priorityClassName",
}
_CONTAINER_FIELDS = {"resources": "resources", "env": "env"}


def trainer_container(pod_spec: dict[str, Any]) -> dict[str, Any]:
    """Return the training container of a validated pod spec."""
    return next(c for c in pod_spec["containers"] if c["name"] == TRAINER_CONTAINER)


def role_template(spec: TrainJobSpec, role: str) -> dict[str, Any]:
    """Return the role's pod template, in which the role's named fields replace whole fields.

    The evaluator gets no extended resources (GPUs) unless it has resources or a template of its own.

    The template, its pod spec, its list of containers and the training container are copies, which callers
    may change. All else is shared with the job and the pods of its other replicas, and must not change: a
    copy of a large template for each of many pods would delay all other jobs.
    """
    settings = getattr(spec, role)
    template: dict[str, Any] = {**(settings.template or spec.template)}
    pod_spec = template["spec"] = {**template["spec"]}
    pod_spec["containers"] = [
        {**container} if container["name"] == TRAINER_CONTAINER else container
        for container in pod_spec["containers"]
    ]
    container = trainer_container(pod_spec)
    for field, key in _POD_FIELDS.items():
        if getattr(settings, field) is not None:
            pod_spec[key] = _as_json(getattr(settings, field))
    for field, key in _CONTAINER_FIELDS.items():
        if getattr(settings, field) is not None:
            container[key] = _as_json(getattr(settings, field))
    if role == EVALUATOR and settings.resources is None and settings.template is None:
        _drop_extended_resources(container)
    return template


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _drop_extended_resources(container: dict[str, Any]) -> None:
    resources = container.get("resources")
    if not isinstance(resources, dict):
        return
    container["resources"] = {
        kind: {k: v for k, v in named.items() if not is_extended_resource(k)}
        if kind in ("limits", "requests") and isinstance(named, dict)
        else named
        for kind, named in resources.items()
    }
