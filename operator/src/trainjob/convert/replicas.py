"""The replicas that a TFJob asks for, by role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.api.wording import shown, suggestion
from trainjob.convert.ledger import Ledger, Path

PATH: Path = ("spec", "tfReplicaSpecs")

ROLES = {"chief": "chief", "master": "chief", "worker": "worker", "ps": "ps", "evaluator": "evaluator"}
"""Kubeflow's replica types, which it takes in any case, and the roles that they are here."""

_NAMES = ("Chief", "Master", "Worker", "PS", "Evaluator")
_FIELDS = frozenset(["replicas", "restartPolicy", "template"])


@dataclass(frozen=True)
class ReplicaSet:
    """One entry of `spec.tfReplicaSpecs`.

    Attributes:
        type: Kubeflow's name of it, as written: `Worker`.
        role: what it is here: `chief`, `worker`, `ps` or `evaluator`.
        count: how many replicas, as written; 1 by default.
        restart_policy: as written; None where there is none, which to a TFJob is `Never`.
        template: the pod template, as written; empty where it is missing or no object.
    """

    type: str
    role: str
    count: Any
    restart_policy: Any
    template: Mapping[str, Any]

    @property
    def path(self) -> Path:
        """Where it stands in the TFJob."""
        return (*PATH, self.type)


def read_replicas(spec: Mapping[str, Any], ledger: Ledger) -> dict[str, ReplicaSet]:
    """Return what the TFJob says of each role; what can't be read is refused in the ledger."""
    entries = spec.get("tfReplicaSpecs")
    if not isinstance(entries, Mapping):
        problem = "required" if entries is None else f"must be an object, got {shown(entries)}"
        old = "; spec.replicaSpecs is the form of v1alpha1: write it as tfReplicaSpecs first"
        ledger.refuse(PATH, problem + (old if "replicaSpecs" in spec else ""))
        return {}
    found: dict[str, ReplicaSet] = {}
    for key, entry in entries.items():
        role = ROLES.get(str(key).lower())
        path = (*PATH, str(key))
        if role is None:
            near = suggestion(key, _NAMES) or f"; the replica types are {', '.join(_NAMES)}"
            ledger.refuse(path, f"is no replica type of a TFJob{near}")
        elif role in found:
            ledger.refuse(
                path, f"is a second {role} beside {found[role].type}; a job has one, remove the other"
            )
        elif not isinstance(entry, Mapping):
            ledger.refuse(path, f"must be an object, got {shown(entry)}")
        else:
            found[role] = _read(str(key), role, entry, ledger)
    return found


def _read(key: str, role: str, entry: Mapping[str, Any], ledger: Ledger) -> ReplicaSet:
    path = (*PATH, key)
    ledger.note_rest(entry, _FIELDS, path, "left out: it is no field of a TFJob's replicas")
    template = entry.get("template")
    if not isinstance(template, Mapping):
        problem = "required" if template is None else f"must be an object, got {shown(template)}"
        ledger.refuse((*path, "template"), problem)
        template = {}
    count, policy = entry.get("replicas"), entry.get("restartPolicy")
    return ReplicaSet(key, role, 1 if count is None else count, None if policy == "" else policy, template)
