"""What selects pods, or reads their labels, by the labels of Kubeflow's training-operator.

Pods of a TrainJob have other labels: a required affinity would never be met, and a variable stay empty.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainjob.api.errors import Step, mapping_at, objects_at, value_at
from trainjob.convert.notes import Notes, Path
from trainjob.convert.replica_specs import ROLES

PREFIX = "training.kubeflow.org/"
JOB, ROLE, INDEX, MANAGER = (
    "trainjob.dev/job",
    "trainjob.dev/role",
    "trainjob.dev/index",
    "app.kubernetes.io/managed-by",
)
_OURS: dict[str, str | None] = {
    **dict.fromkeys((f"{PREFIX}job-name", "job-name", "tf-job-name", "mpi-job-name", "mpi_job_name"), JOB),
    **dict.fromkeys((f"{PREFIX}replica-type", "replica-type", "tf-replica-type"), ROLE),
    **dict.fromkeys((f"{PREFIX}job-role", "job-role", "mpi-job-role", "mpi_role_type"), ROLE),
    **dict.fromkeys((f"{PREFIX}replica-index", "replica-index", "tf-replica-index"), INDEX),
    **dict.fromkeys((f"{PREFIX}operator-name", "controller-name", "group-name"), MANAGER),
}
"""Their labels, by what a TrainJob's pods have instead."""
_UNKNOWN = (
    f"left out: pods of a TrainJob have no such label; {JOB}, {ROLE} and {INDEX} say which replica a pod is"
)


@dataclass(frozen=True)
class Labels:
    """How labels are translated for one job.

    Attributes:
        old_name: the original's name.
        name: the TrainJob's name.
        roles: the TrainJob's roles by replica type, in lower case.
        own: labels that the job's templates set themselves.
    """

    old_name: str
    name: str
    roles: Mapping[str, str]
    own: frozenset[str]

    def is_theirs(self, key: object) -> bool:
        """Return whether the training-operator sets this label on pods."""
        return isinstance(key, str) and key not in self.own and (key in _OURS or key.startswith(PREFIX))

    def translate(self, key: str, values: list[Any]) -> tuple[str, list[Any]] | None:
        """Return the label of a TrainJob's pods, and its values; None if none means the same."""
        ours = _OURS.get(key)
        if ours == JOB and key == "job-name" and values and values != [self.old_name]:
            return key, values  # the pods of a batch/v1 Job have this label, too
        if ours == JOB:
            return ours, [self.name if value == self.old_name else value for value in values]
        if ours == ROLE:
            known = {**ROLES, **self.roles}
            if "job-role" in key and values != ["worker"]:
                return None  # on an MPIJob's workers; elsewhere it marks one replica, such as worker 0
            roles = [known.get(str(value).lower()) for value in values]
            return (ours, roles) if None not in roles else None
        if ours == MANAGER:
            return ours, ["trainjob"] if values else []
        return (ours, values) if ours else None


def convert_labels(template: dict[str, Any], path: Path, labels: Labels, notes: Notes) -> None:
    """Translate all that reads their labels in a template, or leave it out; each is a note."""
    pod, at = template.get("spec"), (*path, "spec")
    if not isinstance(pod, dict):
        return
    for kind in ("podAffinity", "podAntiAffinity"):
        for when in ("required", "preferred"):
            field = f"{when}DuringSchedulingIgnoredDuringExecution"
            holder = mapping_at(pod, "affinity", kind)
            inner = ("podAffinityTerm",) if when == "preferred" else ()
            _filter(holder, field, (*at, "affinity", kind), _selects(inner, labels, notes))
    _filter(pod, "topologySpreadConstraints", at, _selects((), labels, notes))
    for kind in ("containers", "initContainers"):
        for index, container in objects_at(pod, kind):
            _filter(container, "env", (*at, kind, index), _reads(("valueFrom",), labels, notes))
    for index, volume in objects_at(pod, "volumes"):
        place = (*at, "volumes", index, "downwardAPI")
        _filter(mapping_at(volume, "downwardAPI"), "items", place, _reads((), labels, notes))
        for number, source in objects_at(volume, "projected", "sources"):
            place = (*at, "volumes", index, "projected", "sources", number, "downwardAPI")
            _filter(mapping_at(source, "downwardAPI"), "items", place, _reads((), labels, notes))


def find_labels(value: object) -> Iterator[str]:
    """Yield the training-operator's own labels that an object of another kind names, such as a Service."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from (str(key),) if str(key).startswith((PREFIX, "tf-replica-", "tf-job-")) else ()
            yield from find_labels(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from find_labels(inner)
    elif isinstance(value, str) and value.startswith((PREFIX, "tf-replica-", "tf-job-")):
        yield value


_Keep = Callable[[dict[str, Any], Path], bool]


def _filter(holder: Any, field: str, path: Path, keep: _Keep) -> None:
    """Remove the objects of a list that `keep`, which may change them, doesn't keep."""
    found = list(objects_at(holder, field))
    gone = [
        index for index, item in found if isinstance(item, dict) and not keep(item, (*path, field, index))
    ]
    if gone:
        holder[field] = [item for index, item in enumerate(holder[field]) if index not in gone]
        if not holder[field]:
            del holder[field]


def _selects(inner: tuple[Step, ...], labels: Labels, notes: Notes) -> _Keep:
    """Return a function that translates the selector of a term of an affinity, or of a spread constraint."""

    def keep(item: dict[str, Any], path: Path) -> bool:
        term, path = value_at(item, *inner), (*path, *inner)
        selector = mapping_at(term, "labelSelector")
        changes: list[tuple[Path, Any, list[Any]]] = []
        for key, value in mapping_at(selector, "matchLabels").items():
            changes.append((("labelSelector", "matchLabels", key), key, [value]))
        for index, one in objects_at(selector, "matchExpressions"):
            values = one.get("values")
            place: Path = ("labelSelector", "matchExpressions", index)
            changes.append((place, one.get("key"), values if isinstance(values, list) else []))
        for field in ("matchLabelKeys", "mismatchLabelKeys"):
            keys = value_at(term, field)
            for index, key in enumerate(keys if isinstance(keys, list) else ()):
                changes.append(((field, index), key, []))
        theirs = [
            (place, key, labels.translate(key, v)) for place, key, v in changes if labels.is_theirs(key)
        ]
        unknown = [place for place, _, ours in theirs if ours is None]
        if unknown:  # the rest of the term would select other pods
            notes.note((*path, *unknown[0]), _UNKNOWN)
            return False
        for place, key, ours in theirs:
            if ours is not None and ours[0] != key:
                _put(term, place, *ours)
                values = f": {', '.join(map(str, ours[1]))}" if ours[1] else ""
                notes.note((*path, *place), f"becomes {ours[0]}{values}")
        return True

    return keep


def _put(term: Any, place: Path, key: str, values: list[Any]) -> None:
    *way, last = place
    holder: Any = value_at(term, *way)
    if "matchLabels" in way:
        del holder[last]
        holder[key] = values[0]
    elif "matchExpressions" in way:
        holder[last] = {**holder[last], "key": key, **({"values": values} if values else {})}
    else:
        holder[last] = key


_LABEL = re.compile(r"metadata\.labels\['([^']+)'\]")


def _reads(inner: tuple[Step, ...], labels: Labels, notes: Notes) -> _Keep:
    """Return a function that translates a `fieldRef` of a variable, or of a file of the downward API."""

    def keep(item: dict[str, Any], path: Path) -> bool:
        reference = mapping_at(item, *inner, "fieldRef")
        text = reference.get("fieldPath")
        if text == "metadata.name":
            notes.note(
                (*path, *inner, "fieldRef", "fieldPath"),
                f"kept, but a pod's name ends in a hash here: {labels.name}-worker-0-5ed8a1c0; its index is"
                f" metadata.labels['{INDEX}']",
            )
        found = _LABEL.fullmatch(text) if isinstance(text, str) else None
        if found is None or not labels.is_theirs(found[1]) or not isinstance(reference, dict):
            return True
        ours = labels.translate(found[1], [])
        place = (*path, *inner, "fieldRef", "fieldPath")
        if ours is None:
            notes.note(place, _UNKNOWN)
            return False
        reference["fieldPath"] = f"metadata.labels['{ours[0]}']"
        notes.note(place, f"becomes {reference['fieldPath']}")
        return True

    return keep
