"""Which groups and kinds an API server says that it has: kopf explores them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

OURS = "trainjob.dev/v1alpha1"
OTHERS = "trainer.example.org/v1alpha1"
"""Another group, with a kind of the same name and plural."""
DEFINITIONS = "apiextensions.k8s.io/v1"
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def _resource(name: str, kind: str, *, namespaced: bool = True) -> dict[str, Any]:
    return {"name": name, "singularName": "", "kind": kind, "namespaced": namespaced, "verbs": _VERBS}


PAGES: dict[str, dict[str, Any]] = {
    "/api": {"versions": ["v1"]},
    "/api/v1": {
        "resources": [_resource("namespaces", "Namespace", namespaced=False), _resource("events", "Event")]
    },
    f"/apis/{OURS}": {"resources": [_resource("trainjobs", "TrainJob")]},
    f"/apis/{OTHERS}": {"resources": [_resource("trainjobs", "TrainJob")]},
    f"/apis/{DEFINITIONS}": {
        "resources": [_resource("customresourcedefinitions", "CustomResourceDefinition", namespaced=False)]
    },
}
"""What is answered at these addresses."""


def list_groups(versions: Sequence[str]) -> dict[str, Any]:
    """Return the answer about all groups, each in one or more versions, as `group/version`."""
    groups: dict[str, list[dict[str, str]]] = {}
    for version in versions:
        group, _, name = version.partition("/")
        entry = {"groupVersion": version, "version": name}
        if entry not in groups.setdefault(group, []):
            groups[group].append(entry)
    return {
        "groups": [
            {"name": name, "versions": entries, "preferredVersion": entries[0]}
            for name, entries in groups.items()
        ]
    }
