"""The conversion of a pod template: its trainer container, volumes and output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from trainjob.api import PORT, TRAINER_CONTAINER
from trainjob.api.constants import RESERVED_ENV_NAME, RESERVED_ENV_PREFIX
from trainjob.api.errors import objects_at, trainer_of
from trainjob.api.types import CONTAINER_FIELDS, POD_FIELDS
from trainjob.convert.notes import Notes, Path
from trainjob.convert.replica_specs import PATH, ReplicaSet

# The trainer container: `tensorflow` in a TFJob, `trainer` in a TrainJob.


THEIR_NAME = "tensorflow"
THEIR_PORT = "tfjob-port"

_ANNOTATIONS_BY_VALUE = (
    "kubectl.kubernetes.io/default-container",
    "kubectl.kubernetes.io/default-logs-container",
)
_ANNOTATIONS_BY_KEY = ("container.apparmor.security.beta.kubernetes.io/",)


def find_trainer(pod: Mapping[str, Any]) -> int | None:
    """Return the index of the trainer container, or None if it isn't known."""
    containers = list(objects_at(pod, "containers"))
    for name in (THEIR_NAME, TRAINER_CONTAINER):
        for index, container in containers:
            if container.get("name") == name:
                return index
    return (
        containers[0][0] if len(containers) == 1 and isinstance(containers[0][1].get("name"), str) else None
    )


def convert_trainer(pod: dict[str, Any], index: int, path: Path, notes: Notes) -> None:
    """Rename the container, and remove what a TrainJob sets for each replica."""
    container = pod["containers"][index]
    if container["name"] not in (THEIR_NAME, TRAINER_CONTAINER):
        notes.note(
            (*path, "name"), f"becomes {TRAINER_CONTAINER}: it is the only container, so the one that trains"
        )
    container["name"] = TRAINER_CONTAINER
    _convert_env(container, path, notes)
    _convert_ports(container, path, notes)


def _convert_env(container: dict[str, Any], path: Path, notes: Notes) -> None:
    gone = []
    for index, variable in objects_at(container, "env"):
        name = variable.get("name")
        if not isinstance(name, str):
            continue
        if name == RESERVED_ENV_NAME:
            notes.note((*path, "env", index), f"left out: {RESERVED_ENV_NAME} is set for each replica")
        elif name.startswith(RESERVED_ENV_PREFIX):
            why = f"left out: {RESERVED_ENV_PREFIX}* is the job's own; rename {name} here and in the script"
            notes.note((*path, "env", index), why)
        else:
            continue
        gone.append(index)
    _remove(container, "env", gone)


def _convert_ports(container: dict[str, Any], path: Path, notes: Notes) -> None:
    gone = []
    for index, port in objects_at(container, "ports"):
        if port.get("name") == THEIR_PORT and port.get("containerPort") != PORT:
            notes.note(
                (*path, "ports", index),
                f"left out: replicas listen on {PORT}; check that the script takes the port from TF_CONFIG",
            )
            gone.append(index)
    _remove(container, "ports", gone)


def _remove(container: dict[str, Any], field: str, gone: list[int]) -> None:
    if gone:
        container[field] = [item for index, item in enumerate(container[field]) if index not in gone]
        if not container[field]:
            del container[field]


def rename_references(template: dict[str, Any], old_name: str) -> None:
    """Update the references to the renamed container."""
    _rename_fields(template.get("spec"), old_name)
    metadata = template.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    if not isinstance(annotations, dict):
        return
    for key in _ANNOTATIONS_BY_VALUE:
        if annotations.get(key) == old_name:
            annotations[key] = TRAINER_CONTAINER
    for prefix in _ANNOTATIONS_BY_KEY:
        if prefix + old_name in annotations:
            annotations[prefix + TRAINER_CONTAINER] = annotations.pop(prefix + old_name)


def _rename_fields(value: Any, old_name: str) -> None:
    if isinstance(value, dict):
        reference = value.get("resourceFieldRef")
        if isinstance(reference, dict) and reference.get("containerName") == old_name:
            reference["containerName"] = TRAINER_CONTAINER
        for inner in value.values():
            _rename_fields(inner, old_name)
    elif isinstance(value, list):
        for inner in value:
            _rename_fields(inner, old_name)


# The pod template: fields that a TrainJob sets for each replica are removed, the rest is kept.


_METADATA = frozenset(["labels", "annotations"])
_HOST_NAMES = ("hostname", "subdomain")


def convert_template(replicas: ReplicaSet, notes: Notes) -> dict[str, Any]:
    """Return the template for a TrainJob; errors in its shape are left for `parse` to report."""
    template = deepcopy(dict(replicas.template))
    path = (*replicas.path, "template")
    _convert_metadata(template, path, notes)
    pod = template.get("spec")
    if isinstance(pod, dict):
        _convert_pod(pod, (*path, "spec"), notes)
        index = find_trainer(pod)
        if index is not None:
            old_name = pod["containers"][index]["name"]
            convert_trainer(pod, index, (*path, "spec", "containers", index), notes)
            rename_references(template, old_name)
    return template


def _convert_metadata(template: dict[str, Any], path: Path, notes: Notes) -> None:
    metadata = template.get("metadata")
    if not isinstance(metadata, Mapping):
        if metadata is None:
            template.pop("metadata", None)
        return
    notes.note_rest(
        metadata,
        _METADATA,
        (*path, "metadata"),
        "left out: pods take only labels and annotations of a template",
    )
    kept = {key: value for key, value in metadata.items() if key in _METADATA and value}
    if kept:
        template["metadata"] = kept
    else:
        del template["metadata"]


def _convert_pod(pod: dict[str, Any], path: Path, notes: Notes) -> None:
    policy = pod.pop("restartPolicy", None)
    if policy is not None:
        notes.note((*path, "restartPolicy"), "left out: it never had an effect; spec.maxRestarts decides")
    if pod.get("hostNetwork"):
        del pod["hostNetwork"]
        notes.note(
            (*path, "hostNetwork"),
            "left out: replicas on one node would share port 2222; check that the script needs nothing of the"
            " node's network",
        )
    if pod.get("dnsPolicy") == "Default":
        del pod["dnsPolicy"]
        notes.note((*path, "dnsPolicy"), "left out: replicas find each other by the cluster's DNS")
    for field in _HOST_NAMES:
        if pod.pop(field, None) is not None:
            notes.note(
                (*path, field), "left out: it is set for each replica, so that replicas find each other"
            )
    if pod.get("automountServiceAccountToken"):
        del pod["automountServiceAccountToken"]
        notes.note(
            (*path, "automountServiceAccountToken"),
            "left out: training pods get no Kubernetes API token; mount a projected one where it is needed",
        )
    elif (account := pod.get("serviceAccountName") or pod.get("serviceAccount")) not in (None, "default"):
        field = "serviceAccountName" if pod.get("serviceAccountName") else "serviceAccount"
        notes.note(
            (*path, field),
            f"kept as {account}, but no Kubernetes API token is mounted; a cloud's identity tokens still are",
        )
    if pod.get("schedulerName") not in (None, "", "default-scheduler"):
        notes.note(
            (*path, "schedulerName"),
            "kept: the replicas get a PodGroup if the cluster serves Volcano's or scheduler-plugins'; "
            "else they are placed one by one",
        )


# Shared storage that a template mounts in the trainer container.


@dataclass(frozen=True)
class SharedMount:
    """A volume that several pods can write to, as a template mounts it.

    Attributes:
        source: its fields in `spec.output`: `("claim", (("claimName", "training"),))`.
        mount_path: where it is mounted, without a trailing slash.
    """

    source: tuple[str, tuple[tuple[str, str], ...]]
    mount_path: str

    @property
    def title(self) -> str:
        """The volume's description for messages."""
        kind, fields = self.source
        return f"{'claim' if kind == 'claim' else 'NFS folder'} {':'.join(value for _, value in fields)}"

    def as_output(self) -> dict[str, Any]:
        """Return the fields of `spec.output`."""
        kind, fields = self.source
        return {kind: dict(fields), "mountPath": self.mount_path}


def shared_mounts(template: Mapping[str, Any]) -> Iterator[tuple[int, SharedMount]]:
    """Yield index and content of each mount that is shared, writable and has no subPath."""
    volumes = {str(volume.get("name")): volume for _, volume in objects_at(template, "spec", "volumes")}
    for index, mount in objects_at(trainer_of(template.get("spec")), "volumeMounts"):
        source = _source(volumes.get(str(mount.get("name")), {}))
        path = mount.get("mountPath")
        plain = {key for key, value in mount.items() if value} == {"name", "mountPath"}
        if source and plain and isinstance(path, str) and is_output_path(path):
            yield index, SharedMount(source, path.rstrip("/"))


def mount_paths(template: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the mount paths of the trainer container, without trailing slashes."""
    mounts = objects_at(trainer_of(template.get("spec")), "volumeMounts")
    return tuple(str(mount.get("mountPath")).rstrip("/") for _, mount in mounts)


def remove_mount(template: dict[str, Any], wanted: SharedMount) -> None:
    """Remove the mount, and its volume unless another mount uses it."""
    container = trainer_of(template.get("spec"))
    found = [index for index, mount in shared_mounts(template) if mount == wanted]
    if not found:
        return
    names = {str(container["volumeMounts"][index]["name"]) for index in found}
    _keep(container, "volumeMounts", [m for i, m in enumerate(container["volumeMounts"]) if i not in found])
    pod = template["spec"]
    used = {
        str(mount.get("name"))
        for kind in ("containers", "initContainers")
        for _, other in objects_at(pod, kind)
        for _, mount in objects_at(other, "volumeMounts")
    }
    unused = names - used
    _keep(
        pod,
        "volumes",
        [v for v in pod["volumes"] if not isinstance(v, dict) or str(v.get("name")) not in unused],
    )


def is_output_path(path: str) -> bool:
    """Return whether `spec.output.mountPath` may have this value."""
    return path.startswith("/") and bool(path.strip("/")) and ":" not in path and ".." not in path.split("/")


def _keep(holder: dict[str, Any], field: str, items: list[Any]) -> None:
    if items:
        holder[field] = items
    else:
        del holder[field]


def _source(volume: Mapping[str, Any]) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    given = {key: value for key, value in volume.items() if key != "name" and value is not None}
    for kind, field, keys in (
        ("claim", "persistentVolumeClaim", ("claimName",)),
        ("nfs", "nfs", ("server", "path")),
    ):
        source = given.get(field)
        if given.keys() != {field} or not isinstance(source, Mapping):
            continue
        if {key for key, value in source.items() if value} == set(keys):
            fields = tuple((key, source[key]) for key in keys)
            if all(isinstance(value, str) for _, value in fields):
                return kind, fields
    return None


# The TrainJob's output: a TFJob has no field for it, but its volumes may show it.


PLACEHOLDER_CLAIM = "name-of-your-claim"
"""Placeholder for a claim that the user must name."""

_DEFAULT_PATH = "/output"
_TRAINING = ("worker", "chief")

Templates = Mapping[str, dict[str, Any]]
"""The converted templates by role."""


def choose_output(
    templates: Templates, roles: Mapping[str, ReplicaSet], claim: str | None, notes: Notes
) -> dict[str, Any]:
    """Return `spec.output`, and remove its mount from the templates.

    It is the volume that workers and chief all mount, writable and at the same path, if there is exactly one.

    Args:
        templates: the converted templates by role.
        roles: the replicas from which each template comes.
        claim: the claim that the user has named for the output, if any.
        notes: collects the notes.
    """
    candidates = _candidates(templates)
    if claim is not None:
        candidates = [mount for mount in candidates if mount.source == ("claim", (("claimName", claim),))]
    if len(candidates) == 1:
        _note_choice(candidates[0], templates, roles, notes)
        for template in templates.values():
            remove_mount(template, candidates[0])
        return candidates[0].as_output()
    path = _free_path(templates)
    where = {} if path == _DEFAULT_PATH else {"mountPath": path}
    if claim is None:
        specs = next((one.specs for one in roles.values()), PATH)
        notes.note(specs, _say_missing(candidates, path))
    return {"claim": {"claimName": claim or PLACEHOLDER_CLAIM}, **where}


def _candidates(templates: Templates) -> list[SharedMount]:
    training = [templates[role] for role in _TRAINING if role in templates]
    if not training:
        return []
    everywhere = [{mount for _, mount in shared_mounts(template)} for template in training]
    common = [mount for _, mount in shared_mounts(training[0]) if all(mount in found for found in everywhere)]
    return [mount for mount in dict.fromkeys(common) if _is_free(mount, templates)]


def _is_free(mount: SharedMount, templates: Templates) -> bool:
    """Return whether no role mounts something else at the same path."""
    return all(
        mount_paths(template).count(mount.mount_path)
        == [found for _, found in shared_mounts(template)].count(mount)
        for template in templates.values()
    )


def _note_choice(
    mount: SharedMount, templates: Templates, roles: Mapping[str, ReplicaSet], notes: Notes
) -> None:
    first = next(role for role in _TRAINING if role in templates)
    index = next(index for index, found in shared_mounts(templates[first]) if found == mount)
    containers = templates[first]["spec"]["containers"]
    place = next(i for i, container in enumerate(containers) if container.get("name") == TRAINER_CONTAINER)
    reader = "; for the evaluator it is read-only except for its own folder" if "evaluator" in roles else ""
    notes.note(
        (*roles[first].path, "template", "spec", "containers", place, "volumeMounts", index),
        f"becomes spec.output: the {mount.title} at {mount.mount_path}, which all training replicas mount; "
        f"checkpoints and logs go to a folder with the job's name{reader}",
    )


def _say_missing(candidates: list[SharedMount], path: str) -> str:
    found = " and ".join(f"{mount.title} at {mount.mount_path}" for mount in candidates)
    why = f"{found} could each be the output" if found else "no claim is mounted in all training replicas"
    return (
        f"{why}: replace {PLACEHOLDER_CLAIM} in spec.output with the claim for checkpoints and logs, or "
        f"convert with --claim; it is mounted at {path}"
    )


def _free_path(templates: Templates) -> str:
    used = {path for template in templates.values() for path in mount_paths(template)}
    names = (_DEFAULT_PATH, "/trainjob-output", *(f"/trainjob-output-{number}" for number in range(2, 300)))
    return next(name for name in names if name not in used)


# A role's differences from `spec.template`: single fields, or a template of its own.


def role_differences(base: dict[str, Any], own: dict[str, Any], role: str) -> dict[str, Any]:
    """Return the role's fields that make its pods like `own` when `spec.template` is `base`."""
    if _rest(base) != _rest(own):
        return {"template": own}
    differences = {}
    for field in (*CONTAINER_FIELDS, *POD_FIELDS.values()):
        before, now = _value(base, field), _value(own, field)
        if now is None and isinstance(before, str):
            return {"template": own}  # no value of the field means none
        if now != before:
            differences[field] = deepcopy(now) if now is not None else type(before)()
    if role == "evaluator" and _names_devices(_value(own, "resources")):
        # Without resources of its own an evaluator gets no devices of the template.
        differences["resources"] = deepcopy(_value(own, "resources"))
    return differences


def _value(template: dict[str, Any], field: str) -> Any:
    """Return the value of a field that a role can set; None if it is empty."""
    pod = template.get("spec")
    holder = trainer_of(pod) if field in CONTAINER_FIELDS else pod
    return (holder.get(field) or None) if isinstance(holder, dict) else None


def _rest(template: dict[str, Any]) -> dict[str, Any]:
    """Return the template without the fields that a role can set."""
    rest = deepcopy(template)
    pod = rest.get("spec")
    for holder, fields in ((pod, POD_FIELDS.values()), (trainer_of(pod), CONTAINER_FIELDS)):
        for field in fields:
            if isinstance(holder, dict):
                holder.pop(field, None)
    return rest


def _names_devices(resources: Any) -> bool:
    if not isinstance(resources, dict):
        return False
    amounts = (resources.get("limits"), resources.get("requests"))
    return bool(resources.get("claims")) or any(
        "/" in str(name) for kind in amounts if isinstance(kind, dict) for name in kind
    )
