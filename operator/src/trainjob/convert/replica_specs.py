"""The roles and replicas of a TFJob, and its success policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trainjob.api.errors import shown, suggestion
from trainjob.convert.notes import Notes, Path

# The replicas of a TFJob, by role.


PATH: Path = ("spec", "tfReplicaSpecs")

ROLES = {"chief": "chief", "master": "chief", "worker": "worker", "ps": "ps", "evaluator": "evaluator"}
"""Kubeflow's replica types, in lower case because it ignores case, and the roles that they become."""

_NAMES = ("Chief", "Master", "Worker", "PS", "Evaluator")
_FIELDS = frozenset(["replicas", "restartPolicy", "template"])


@dataclass(frozen=True)
class ReplicaSet:
    """One entry of `spec.tfReplicaSpecs`.

    Attributes:
        type: Kubeflow's replica type, as written: `Worker`.
        role: its role in the TrainJob: `chief`, `worker`, `ps` or `evaluator`.
        count: the number of replicas, as written; 1 by default.
        restart_policy: as written; None if it is absent, which means `Never` in a TFJob.
        template: the pod template, as written; empty if it is missing or no object.
        specs: the path of all replicas in the original job.
    """

    type: str
    role: str
    count: Any
    restart_policy: Any
    template: Mapping[str, Any]
    specs: Path = PATH

    @property
    def path(self) -> Path:
        """Its path in the original job."""
        return (*self.specs, self.type)


def read_replicas(spec: Mapping[str, Any], notes: Notes) -> dict[str, ReplicaSet]:
    """Return the TFJob's replicas by role; refuse what can't be read."""
    entries = spec.get("tfReplicaSpecs")
    if not isinstance(entries, Mapping):
        problem = "required" if entries is None else f"must be an object, got {shown(entries)}"
        old = "; spec.replicaSpecs is the form of v1alpha1: write it as tfReplicaSpecs first"
        notes.refuse(PATH, problem + (old if "replicaSpecs" in spec else ""))
        return {}
    found: dict[str, ReplicaSet] = {}
    for key, entry in entries.items():
        role = ROLES.get(str(key).lower())
        path = (*PATH, str(key))
        if role is None:
            near = suggestion(key, _NAMES) or f"; the replica types are {', '.join(_NAMES)}"
            notes.refuse(path, f"is no replica type of a TFJob{near}")
        elif role in found:
            notes.refuse(
                path, f"is a second {role} beside {found[role].type}; a job has one, remove the other"
            )
        elif not isinstance(entry, Mapping):
            notes.refuse(path, f"must be an object, got {shown(entry)}")
        else:
            found[role] = _read(str(key), role, entry, notes)
    return found


def _read(key: str, role: str, entry: Mapping[str, Any], notes: Notes) -> ReplicaSet:
    path = (*PATH, key)
    notes.note_rest(entry, _FIELDS, path, "left out: it is no field of a TFJob's replicas")
    template = entry.get("template")
    if not isinstance(template, Mapping):
        problem = "required" if template is None else f"must be an object, got {shown(template)}"
        notes.refuse((*path, "template"), problem)
        template = {}
    count, policy = entry.get("replicas"), entry.get("restartPolicy")
    return ReplicaSet(key, role, 1 if count is None else count, None if policy == "" else policy, template)


# The success policy: a TrainJob waits for all training replicas, a TFJob by default for one of them.


SUCCESS_PATH: Path = ("spec", "successPolicy")


def note_success(policy: Any, roles: Mapping[str, ReplicaSet], notes: Notes) -> None:
    """Note a success policy that can't be carried over."""
    if policy not in (None, "", "AllWorkers"):
        notes.refuse(SUCCESS_PATH, f'must be "" or AllWorkers, got {shown(policy)}')
    elif policy == "" and "ps" not in roles and not _is_alone(roles):
        notes.note(
            SUCCESS_PATH,
            "is AllWorkers here: the job is complete when chief and workers have all ended with exit code 0",
        )
    elif policy == "AllWorkers" and "ps" in roles:
        notes.note(
            SUCCESS_PATH,
            "left out: with parameter servers the job is complete when the chief has ended with exit code 0",
        )


def _is_alone(roles: Mapping[str, ReplicaSet]) -> bool:
    return "chief" not in roles and "worker" in roles and roles["worker"].count == 1


def note_dynamic_workers(enabled: Any, notes: Notes) -> None:
    """Note what happens to `enableDynamicWorker`."""
    path: Path = ("spec", "enableDynamicWorker")
    if enabled is True:
        notes.note(
            path,
            "left out: TF_CONFIG always has the whole cluster; kubectl scale changes the number of workers, "
            "and with restartStrategy InPlace spec.worker.minReplicas is the fewest that may continue",
        )
    elif enabled not in (None, False):
        notes.refuse(path, f"must be true or false, got {shown(enabled)}")


# The TrainJob's roles: a TFJob may lack roles that a TrainJob needs, and have more replicas of some.


_SINGLE = ("chief", "evaluator")


def assign_roles(found: Mapping[str, ReplicaSet], notes: Notes) -> dict[str, ReplicaSet]:
    """Return the replicas from which each role of the TrainJob is made, without absent roles."""
    roles = _without_empty(found, notes)
    for role in _SINGLE:
        if role in roles:
            roles[role] = _at_most_one(roles[role], notes)
    if not notes.refusals and not {"worker", "chief"} & roles.keys():
        notes.refuse(PATH, "has neither Worker nor Chief, so that nothing would train; add Worker")
    _add_missing(roles, notes)
    if (chief := roles.get("chief")) and chief.type.lower() == "master":
        notes.note(chief.path, 'becomes spec.chief: TF_CONFIG calls it "chief" instead of "master"')
    return roles


def _without_empty(found: Mapping[str, ReplicaSet], notes: Notes) -> dict[str, ReplicaSet]:
    kept = {}
    for role, replicas in found.items():
        # A TFJob with 0 workers and no chief is refused for that field: replicas must be at least 1.
        if _is_none(replicas.count) and (role != "worker" or "chief" in found):
            notes.note(replicas.path, "left out: it has no replicas")
            continue
        kept[role] = replicas
    return kept


def _at_most_one(replicas: ReplicaSet, notes: Notes) -> ReplicaSet:
    count = replicas.count
    if not isinstance(count, int) or count <= 1:
        return replicas
    notes.note((*replicas.path, "replicas"), f"becomes 1: a TrainJob has one {replicas.role}, not {count}")
    return replace(replicas, count=1)


def _add_missing(roles: dict[str, ReplicaSet], notes: Notes) -> None:
    chief, worker = roles.get("chief"), roles.get("worker")
    if chief and not worker:
        roles["worker"] = replace(chief, role="worker", count=1)
        if "ps" in roles:
            notes.note(
                chief.path,
                "becomes spec.chief and one worker of the same template: with parameter servers a chief"
                " coordinates and workers train; check that the script does so",
            )
        else:
            del roles["chief"]
            notes.note(
                chief.path,
                "becomes spec.worker: TF_CONFIG calls it worker 0 instead of chief 0; check that the script"
                ' doesn\'t ask for "chief"',
            )
    elif worker and "ps" in roles and not chief:
        roles["chief"] = replace(worker, role="chief", count=1)
        notes.note(
            roles["ps"].path,
            "needs a chief, which coordinates ParameterServer training: spec.chief is added with the template"
            " of Worker; check that the script coordinates in that role, and give it resources of its own",
        )


def _is_none(count: Any) -> bool:
    return isinstance(count, int | float) and not isinstance(count, bool) and count == 0
