"""Addresses, selectors and merge patches, as an API server reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    plural: str
    kind: str


KINDS = {
    kind.plural: kind
    for kind in (
        Kind("trainjobs", "TrainJob"),
        Kind("pods", "Pod"),
        Kind("services", "Service"),
        Kind("persistentvolumeclaims", "PersistentVolumeClaim"),
        Kind("networkpolicies", "NetworkPolicy"),
        Kind("secrets", "Secret"),
        Kind("configmaps", "ConfigMap"),
        Kind("events", "Event"),
        Kind("workloads", "Workload"),
        Kind("localqueues", "LocalQueue"),
        Kind("podgroups", "PodGroup"),
        Kind("resourceflavors", "ResourceFlavor"),
        Kind("workloadpriorityclasses", "WorkloadPriorityClass"),
        Kind("priorityclasses", "PriorityClass"),
        Kind("leases", "Lease"),
    )
}


def read_path(path: str) -> tuple[Kind, str | None, str, str]:
    """Return kind, namespace (None: all), name and subresource."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = None
    if parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    plural, name, sub = [*parts, "", ""][:3]
    return KINDS[plural], namespace, name, sub


def matches(manifest: dict[str, Any], selector: str) -> bool:
    """Return whether the object has the label; other selectors aren't known here."""
    return not selector or selector in (manifest["metadata"].get("labels") or {})


def merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """Apply a JSON merge patch (RFC 7386) in place."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        else:
            target[key] = value
