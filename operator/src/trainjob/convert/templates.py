"""A pod template of a TFJob as one of a TrainJob: what is set for each replica goes, the rest stays."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from trainjob.api.paths import mapping_at
from trainjob.convert.ledger import Ledger, Path
from trainjob.convert.replicas import ReplicaSet
from trainjob.convert.trainer import convert_trainer, find_trainer, rename_references

_METADATA = frozenset(["labels", "annotations"])
_HOST_NAMES = ("hostname", "subdomain")


def convert_template(replicas: ReplicaSet, ledger: Ledger) -> dict[str, Any]:
    """Return the template for a TrainJob; what is wrong with its shape is left for `parse` to say."""
    template = deepcopy(dict(replicas.template))
    path = (*replicas.path, "template")
    _convert_metadata(template, path, ledger)
    pod = template.get("spec")
    if isinstance(pod, dict):
        _convert_pod(pod, (*path, "spec"), ledger)
        index = find_trainer(pod)
        if index is not None:
            old_name = pod["containers"][index]["name"]
            convert_trainer(pod, index, (*path, "spec", "containers", index), ledger)
            rename_references(template, old_name)
    return template


def _convert_metadata(template: dict[str, Any], path: Path, ledger: Ledger) -> None:
    metadata = template.get("metadata")
    if not isinstance(metadata, Mapping):
        if metadata is None:
            template.pop("metadata", None)
        return
    ledger.note_rest(
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


def _convert_pod(pod: dict[str, Any], path: Path, ledger: Ledger) -> None:
    policy = pod.pop("restartPolicy", None)
    if policy is not None:
        ledger.note((*path, "restartPolicy"), "left out: it never had an effect; spec.maxRestarts decides")
    if pod.get("hostNetwork"):
        del pod["hostNetwork"]
        ledger.note(
            (*path, "hostNetwork"),
            "left out: replicas on one node would share port 2222; check that the script needs nothing of the"
            " node's network",
        )
    for field in _HOST_NAMES:
        if pod.pop(field, None) is not None:
            ledger.note(
                (*path, field), "left out: it is set for each replica, so that replicas find each other"
            )
    if pod.get("automountServiceAccountToken"):
        del pod["automountServiceAccountToken"]
        ledger.note(
            (*path, "automountServiceAccountToken"),
            "left out: training pods get no Kubernetes API token; mount a projected one where it is needed",
        )
    elif (account := pod.get("serviceAccountName") or pod.get("serviceAccount")) not in (None, "default"):
        field = "serviceAccountName" if pod.get("serviceAccountName") else "serviceAccount"
        ledger.note(
            (*path, field),
            f"kept as {account}, but no Kubernetes API token is mounted; a cloud's identity tokens still are",
        )
    if pod.get("schedulerName") not in (None, "", "default-scheduler"):
        ledger.note(
            (*path, "schedulerName"),
            "kept, but no PodGroup is made for this scheduler: it places the replicas one by one",
        )


def trainer_of(template: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the container `trainer` of a converted template, or None where there is none."""
    containers = mapping_at(template, "spec").get("containers")
    for container in containers if isinstance(containers, list) else ():
        if isinstance(container, dict) and container.get("name") == "trainer":
            return container
    return None
