"""What pods ask for, beyond what every machine has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_extended_resource(name: str) -> bool:
    """Tell whether a resource is a device: a name with a domain outside Kubernetes' own."""
    domain, slash, _ = name.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def count_gpus(pod: Mapping[str, Any]) -> int:
    """Return how many GPUs the containers of a pod, or of a pod template, ask for, whoever makes them."""
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
