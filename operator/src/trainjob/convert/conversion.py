"""The conversion of one TFJob or MPIJob to a TrainJob: the order of the decisions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.api import API_VERSION, KIND, FieldError, InvalidTrainJob, parse_strictly
from trainjob.api.errors import format_path, mapping_at, shown
from trainjob.api.types import CONTAINER_FIELDS, POD_FIELDS
from trainjob.convert.labels import JOB, ROLE, Labels, convert_labels, find_labels
from trainjob.convert.mpijob import SPEC_FIELDS as MPI_FIELDS
from trainjob.convert.mpijob import read_workers
from trainjob.convert.notes import Note, Notes, Origins, Path
from trainjob.convert.pod_templates import choose_output, convert_template, find_trainer, role_differences
from trainjob.convert.policies import (
    RunPolicy,
    max_restarts,
    priority_class,
    restart_settings,
    run_settings,
    set_priority_class,
)
from trainjob.convert.replica_specs import (
    ReplicaSet,
    assign_roles,
    note_dynamic_workers,
    note_success,
    read_replicas,
)

# The objects of a file, including those in lists, and which of them are TFJobs.


GROUP = "kubeflow.org"
TFJOB_KIND = "TFJob"
MPIJOB_KIND = "MPIJob"
_LIST_KINDS = (("v1", "List"), (GROUP, f"{TFJOB_KIND}List"))


@dataclass(frozen=True)
class Item:
    """One object of a document.

    Attributes:
        raw: the object as plain JSON.
        place: its path in the document, such as `items[2]`; empty if it is the whole document.
    """

    raw: Mapping[str, Any]
    place: str = ""


def is_convertible(raw: Mapping[str, Any]) -> bool:
    """Return whether an object is a TFJob or an MPIJob of any version."""
    return raw.get("kind") in (TFJOB_KIND, MPIJOB_KIND) and _group(raw) == GROUP


def list_items(raw: Mapping[str, Any]) -> tuple[Item, ...]:
    """Return the objects of a list (`kind: List`, `kind: TFJobList`), or an object that is no such list.

    The items of a TFJobList are TFJobs even without a `kind`: the API server returns them in that form.
    """
    items = raw.get("items")
    is_list = any(
        raw.get("kind") == kind and owner in (raw.get("apiVersion"), _group(raw))
        for owner, kind in _LIST_KINDS
    )
    if not (is_list and isinstance(items, list) and items and all(isinstance(i, Mapping) for i in items)):
        return (Item(raw),)
    implied = (
        {"apiVersion": raw.get("apiVersion"), "kind": TFJOB_KIND}
        if raw.get("kind") == f"{TFJOB_KIND}List"
        else {}
    )
    return tuple(Item({**implied, **item}, f"items[{index}]") for index, item in enumerate(items))


_INSIDE = re.compile(r"^\s*[\"']?kind[\"']?:\s*[\"']?(TFJob|MPIJob)\b", re.MULTILINE)


def describe_other(raw: Mapping[str, Any]) -> str:
    """Return what an object that is no TFJob or MPIJob is, and what to do with a job inside it."""
    found = next(_find_inside(raw, ()), None)
    if found is not None:
        path, kind = found
        after = _AFTERWARDS.get(str(raw.get("kind")), "")
        return (
            f"holds a {kind} at {format_path(path)}, which can't be converted there: move it into a file of "
            f"its own, convert that file, and put the TrainJob in its place{after}"
        )
    if labels := sorted(set(find_labels(raw))):
        return (
            f"{_NO_JOB}; pods of a TrainJob don't have the label {', '.join(labels)}: select them by {JOB} "
            f"and {ROLE}"
        )
    return _NO_JOB


_NO_JOB = f"not a {TFJOB_KIND} or {MPIJOB_KIND} of {GROUP}"
_OF_WORKFLOWS = "; its successCondition is then status.state == Complete, its failureCondition == Failed"
_AFTERWARDS = {
    **dict.fromkeys(
        ("Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow"), _OF_WORKFLOWS
    ),
    "Experiment": "; its conditions are then Complete and Failed, and primaryContainerName is trainer",
}


def _find_inside(value: object, path: Path) -> Iterator[tuple[Path, str]]:
    """Yield the jobs inside an object: as an object, or as the text of a manifest."""
    if isinstance(value, Mapping):
        if path and is_convertible(value):
            yield path, str(value["kind"])
        for key, inner in value.items():
            yield from _find_inside(inner, (*path, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _find_inside(inner, (*path, index))
    elif isinstance(value, str) and (text := _INSIDE.search(value)):
        yield path, text[1]


def describe(raw: Mapping[str, Any]) -> str:
    """Return the kind and name of an object, for messages."""
    words = (raw.get("kind"), describe_name(raw))
    return " ".join(str(word) for word in words if word) or "an object without a kind"


def describe_name(raw: Mapping[str, Any]) -> str:
    """Return the name of an object, or what its name begins with."""
    metadata = mapping_at(raw, "metadata")
    return str(metadata.get("name") or metadata.get("generateName") or "")


def _group(raw: Mapping[str, Any]) -> str:
    return str(raw.get("apiVersion")).split("/", maxsplit=1)[0]


# The TrainJob's metadata: what users wrote is kept, what the cluster or kubectl wrote is not.


PATH: Path = ("metadata",)

_KEPT = ("name", "namespace", "labels", "annotations")
_BY_THE_CLUSTER = frozenset(
    [
        *("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"),
        *("deletionTimestamp", "deletionGracePeriodSeconds"),
    ]
)
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_KUEUE_PREFIX = "kueue.x-k8s.io/"
_KUEUE_LABELS = (f"{_KUEUE_PREFIX}queue-name", f"{_KUEUE_PREFIX}priority-class")


def convert_metadata(raw: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    """Return the TrainJob's metadata."""
    metadata = raw.get("metadata")
    if not isinstance(metadata, Mapping):
        problem = "required" if metadata is None else f"must be an object, got {shown(metadata)}"
        notes.refuse(PATH, problem)
        return {}
    kept = {key: metadata[key] for key in _KEPT if metadata.get(key) is not None}
    if not kept.get("name") and (prefix := metadata.get("generateName")):
        kept = {"name": str(prefix).rstrip("-"), **{k: v for k, v in kept.items() if k != "name"}}
        notes.note(
            (*PATH, "generateName"), "becomes metadata.name: a TrainJob's name is part of its addresses"
        )
    elif metadata.get("generateName") is not None:
        notes.note((*PATH, "generateName"), "left out beside metadata.name")
    for key, value in metadata.items():
        if key not in (*_KEPT, "generateName") and value is not None:
            why = "the cluster sets it" if key in _BY_THE_CLUSTER else "the new object is yours alone"
            notes.note((*PATH, str(key)), f"left out: {why}")
    for kind in ("labels", "annotations"):
        if isinstance(kept.get(kind), Mapping):
            kept[kind] = _without_tools(kept[kind], (*PATH, kind), notes)
            if not kept[kind]:
                del kept[kind]
    return kept


def _without_tools(texts: Mapping[str, Any], path: Path, notes: Notes) -> dict[str, Any]:
    for key in texts:
        if key == _LAST_APPLIED:
            notes.note((*path, key), "left out: kubectl writes its own for the new object")
        elif key.startswith(_KUEUE_PREFIX) and key not in _KUEUE_LABELS:
            notes.note((*path, key), "kept, but it has no effect on jobs of this kind")
    return {key: value for key, value in texts.items() if key != _LAST_APPLIED}


# The conversion: the order of the decisions.


_DOCUMENT_FIELDS = frozenset(["apiVersion", "kind", "metadata", "spec"])
_SPEC_FIELDS = RunPolicy.IN_SPEC | {"runPolicy", "successPolicy", "tfReplicaSpecs", "enableDynamicWorker"}
_ROLES = ("worker", "chief", "ps", "evaluator")


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion.

    Attributes:
        manifest: the TrainJob as plain JSON, fields in the order in which people read them.
        notes: what isn't carried over unchanged, by the TFJob's fields.
        refusals: why the TrainJob isn't valid, by the TFJob's fields where they are the cause; empty if it
            is valid.
    """

    manifest: dict[str, Any]
    notes: tuple[Note, ...]
    refusals: tuple[FieldError, ...]


def convert(original: Mapping[str, Any], *, claim: str | None = None) -> Conversion:
    """Convert a TFJob (`kubeflow.org/v1`, and older versions with `tfReplicaSpecs`) to a TrainJob.

    So is an MPIJob in Horovod's usual form, a launcher with `horovodrun` or `mpirun` and workers.

    Args:
        original: plain JSON, as read from YAML; it isn't changed.
        claim: the claim for checkpoints and logs; None to choose it from the job's volumes.
    """
    notes = Notes()
    notes.note_rest(original, _DOCUMENT_FIELDS, (), "left out: the controller writes its own")
    manifest: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": convert_metadata(original, notes),
        "spec": {},
    }
    origins = Origins(original, manifest)
    spec = original.get("spec")
    if isinstance(spec, Mapping):
        names = (describe_name(original), str(manifest["metadata"].get("name")))
        manifest["spec"] = _convert_spec(str(original.get("kind")), spec, claim, names, origins, notes)
    else:
        notes.refuse(("spec",), "required" if spec is None else f"must be an object, got {shown(spec)}")
    refusals = notes.refusals or tuple(origins.trace(error) for error in _mistakes(manifest))
    return Conversion(manifest, notes.notes, refusals)


def _convert_spec(
    kind: str,
    spec: Mapping[str, Any],
    claim: str | None,
    names: tuple[str, str],
    origins: Origins,
    notes: Notes,
) -> dict[str, Any]:
    if kind == MPIJOB_KIND:
        roles = read_workers(spec, notes)
        fields, why = RunPolicy.IN_SPEC | MPI_FIELDS, "left out: a TrainJob has no equivalent"
    else:
        roles = assign_roles(read_replicas(spec, notes), notes)
        fields, why = _SPEC_FIELDS, "left out: it is no field of a TFJob's spec"
    policy = RunPolicy(spec, notes)
    notes.note_rest(spec, fields, ("spec",), why)
    templates = _convert_templates(roles, priority_class(policy["schedulingPolicy"], notes), notes)
    labels = _labels(roles, *names)
    for role, template in templates.items():
        convert_labels(template, (*roles[role].path, "template"), labels, notes)
    output = choose_output(templates, roles, claim, notes)
    if kind != MPIJOB_KIND:
        note_success(spec.get("successPolicy"), roles, notes)
        note_dynamic_workers(spec.get("enableDynamicWorker"), notes)
    limit = policy["backoffLimit"]
    for name in ("activeDeadlineSeconds", "ttlSecondsAfterFinished", "suspend", "managedBy"):
        origins.add(("spec", name), policy[name].path)
    origins.add(("spec", "maxRestarts"), limit.path)
    return {
        **_convert_roles(roles, templates, origins),
        "output": output,
        **run_settings(policy, notes),
        "maxRestarts": max_restarts(roles, limit.value, limit.path, notes),
        **restart_settings(roles, notes),
        **({"template": templates["worker"]} if "worker" in templates else {}),
    }


def _convert_templates(
    roles: Mapping[str, ReplicaSet], priority: str | None, notes: Notes
) -> dict[str, dict[str, Any]]:
    templates = {role: convert_template(roles[role], notes) for role in _ROLES if role in roles}
    for template in templates.values():
        if priority:
            set_priority_class(template, priority)
    return templates


def _labels(roles: Mapping[str, ReplicaSet], old_name: str, name: str) -> Labels:
    chief_last = sorted(roles.items(), key=lambda item: item[0] == "chief")  # it may be worker 0, too
    set_by_user = (mapping_at(each.template, "metadata", "labels") for each in roles.values())
    return Labels(
        old_name,
        name,
        {replicas.type.lower(): role for role, replicas in chief_last},
        frozenset(key for labels in set_by_user for key in labels),
    )


def _convert_roles(
    roles: Mapping[str, ReplicaSet], templates: Mapping[str, dict[str, Any]], origins: Origins
) -> dict[str, Any]:
    """Return the roles' fields; a role has only the differences from the workers' template."""
    made: dict[str, Any] = {}
    for role in _ROLES:
        if role not in roles:
            continue
        replicas = roles[role]
        _add_origins(replicas, origins)
        is_default = role in ("chief", "evaluator") and _is_one(replicas.count)
        made[role] = {} if is_default else {"replicas": replicas.count}
        if role != "worker" and "worker" in templates:
            made[role] |= role_differences(templates["worker"], templates[role], role)
    return made if "evaluator" in roles else {**made, "evaluator": {"replicas": 0}}


def _add_origins(replicas: ReplicaSet, origins: Origins) -> None:
    role, template = replicas.role, (*replicas.path, "template")
    origins.add(("spec", role), replicas.path)
    if role == "worker":
        origins.add(("spec", "template"), template)
    pod = (*template, "spec")
    for field in POD_FIELDS.values():
        origins.add(("spec", role, field), (*pod, field))
    container = find_trainer(mapping_at(replicas.template, "spec"))
    for field in CONTAINER_FIELDS:
        if container is not None:
            origins.add(("spec", role, field), (*pod, "containers", container, field))


def _is_one(count: Any) -> bool:
    return count == 1 and not isinstance(count, bool)


def _mistakes(manifest: Mapping[str, Any]) -> tuple[FieldError, ...]:
    try:
        parse_strictly(manifest)
    except InvalidTrainJob as invalid:
        return invalid.errors
    return ()
