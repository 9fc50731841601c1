"""The container that trains: `tensorflow` in a TFJob, `trainer` in a TrainJob."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainjob.api import PORT, TRAINER_CONTAINER
from trainjob.api.group import RESERVED_ENV_NAME, RESERVED_ENV_PREFIX
from trainjob.api.paths import objects_at
from trainjob.convert.ledger import Ledger, Path

THEIR_NAME = "tensorflow"
THEIR_PORT = "tfjob-port"

_ANNOTATIONS_BY_VALUE = (
    "kubectl.kubernetes.io/default-container",
    "kubectl.kubernetes.io/default-logs-container",
)
_ANNOTATIONS_BY_KEY = ("container.apparmor.security.beta.kubernetes.io/",)


def find_trainer(pod: Mapping[str, Any]) -> int | None:
    """Return the index of the container that trains, or None where that can't be told."""
    containers = list(objects_at(pod, "containers"))
    for name in (THEIR_NAME, TRAINER_CONTAINER):
        for index, container in containers:
            if container.get("name") == name:
                return index
    return (
        containers[0][0] if len(containers) == 1 and isinstance(containers[0][1].get("name"), str) else None
    )


def convert_trainer(pod: dict[str, Any], index: int, path: Path, ledger: Ledger) -> None:
    """Rename the container, and take away what a TrainJob sets for each replica."""
    container = pod["containers"][index]
    if container["name"] not in (THEIR_NAME, TRAINER_CONTAINER):
        ledger.note(
            (*path, "name"), f"becomes {TRAINER_CONTAINER}: it is the only container, so the one that trains"
        )
    container["name"] = TRAINER_CONTAINER
    _convert_env(container, path, ledger)
    _convert_ports(container, path, ledger)


def _convert_env(container: dict[str, Any], path: Path, ledger: Ledger) -> None:
    gone = []
    for index, variable in objects_at(container, "env"):
        name = variable.get("name")
        if not isinstance(name, str):
            continue
        if name == RESERVED_ENV_NAME:
            ledger.note((*path, "env", index), f"left out: {RESERVED_ENV_NAME} is set for each replica")
        elif name.startswith(RESERVED_ENV_PREFIX):
            why = f"left out: {RESERVED_ENV_PREFIX}* is the job's own; rename {name} here and in the script"
            ledger.note((*path, "env", index), why)
        else:
            continue
        gone.append(index)
    _remove(container, "env", gone)


def _convert_ports(container: dict[str, Any], path: Path, ledger: Ledger) -> None:
    gone = []
    for index, port in objects_at(container, "ports"):
        if port.get("name") == THEIR_PORT and port.get("containerPort") != PORT:
            ledger.note(
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
    """Let what refers to the container by name follow its renaming."""
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
