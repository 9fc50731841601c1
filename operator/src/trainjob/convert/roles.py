"""Which roles the TrainJob has: a TFJob may leave out ones that a TrainJob needs, and have more of some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from trainjob.convert.ledger import Ledger
from trainjob.convert.replicas import PATH, ReplicaSet

_SINGLE = ("chief", "evaluator")


def assign_roles(found: Mapping[str, ReplicaSet], ledger: Ledger) -> dict[str, ReplicaSet]:
    """Return what each role of the TrainJob is made from; a role that isn't there is left out."""
    roles = _without_empty(found, ledger)
    for role in _SINGLE:
        if role in roles:
            roles[role] = _at_most_one(roles[role], ledger)
    if not ledger.refusals and not {"worker", "chief"} & roles.keys():
        ledger.refuse(PATH, "has neither Worker nor Chief, so that nothing would train; add Worker")
    _add_missing(roles, ledger)
    if (chief := roles.get("chief")) and chief.type.lower() == "master":
        ledger.note(chief.path, 'becomes spec.chief: TF_CONFIG calls it "chief" instead of "master"')
    return roles


def _without_empty(found: Mapping[str, ReplicaSet], ledger: Ledger) -> dict[str, ReplicaSet]:
    kept = {}
    for role, replicas in found.items():
        # A TFJob of no workers and no chief is refused for what it says: replicas must be at least 1.
        if _is_none(replicas.count) and (role != "worker" or "chief" in found):
            ledger.note(replicas.path, "left out: it has no replicas")
            continue
        kept[role] = replicas
    return kept


def _at_most_one(replicas: ReplicaSet, ledger: Ledger) -> ReplicaSet:
    count = replicas.count
    if not isinstance(count, int) or count <= 1:
        return replicas
    ledger.note((*replicas.path, "replicas"), f"becomes 1: a TrainJob has one {replicas.role}, not {count}")
    return replace(replicas, count=1)


def _add_missing(roles: dict[str, ReplicaSet], ledger: Ledger) -> None:
    chief, worker = roles.get("chief"), roles.get("worker")
    if chief and not worker:
        roles["worker"] = replace(chief, role="worker", count=1)
        if "ps" in roles:
            ledger.note(
                chief.path,
                "becomes spec.chief and one worker of the same template: with parameter servers a chief"
                " coordinates and workers train; check that the script does so",
            )
        else:
            del roles["chief"]
            ledger.note(
                chief.path,
                "becomes spec.worker: TF_CONFIG calls it worker 0 instead of chief 0; check that the script"
                ' doesn\'t ask for "chief"',
            )
    elif worker and "ps" in roles and not chief:
        roles["chief"] = replace(worker, role="chief", count=1)
        ledger.note(
            roles["ps"].path,
            "needs a chief, which coordinates ParameterServer training: spec.chief is added with the template"
            " of Worker; check that the script coordinates in that role, and give it resources of its own",
        )


def _is_none(count: Any) -> bool:
    return isinstance(count, int | float) and not isinstance(count, bool) and count == 0
