"""What is kept of each object in the caches: what the rules, the agents' poller and the metrics read.

A pod of a job with a thousand workers has 45 kB of TF_CONFIG beside its template. With every pod of every job
whole in the caches, of the controller and of its standby, one job would take more memory than either has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainjob.api import BUNDLE_VOLUME, TRAINER_CONTAINER
from trainjob.api.group import RESERVED_LABEL_PREFIX
from trainjob.api.paths import mapping_at, objects_at
from trainjob.api.rules.size import without_too_large
from trainjob.cluster.protocol import Manifest
from trainjob.core.tf_config import shorten_tf_config

_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_CONDITIONS = ("PodScheduled", "Ready", "DisruptionTarget")


def project(manifest: Manifest) -> Manifest:
    """Return what is kept of an object; the object itself stays as it is."""
    parts = _PARTS.get(manifest.get("kind", ""), _no_parts)(manifest)
    return {**_picked(manifest, ("apiVersion", "kind")), "metadata": _project_metadata(manifest), **parts}


def _no_parts(_manifest: Manifest) -> Manifest:
    return {}


def _project_metadata(manifest: Manifest) -> Manifest:
    meta = manifest["metadata"]
    kept = _picked(meta, _METADATA)
    owners = [owner for owner in meta.get("ownerReferences") or () if owner.get("controller")]
    if owners:
        kept["ownerReferences"] = owners
    labels = meta.get("labels") or {}
    if manifest.get("kind") != "TrainJob":  # a queue's name on a job has a prefix of its own
        labels = {name: value for name, value in labels.items() if name.startswith(RESERVED_LABEL_PREFIX)}
    return {**kept, "labels": labels} if labels else kept


def _project_job(job: Manifest) -> Manifest:
    has_begun = bool(mapping_at(job, "status").get("startTime"))
    kept = job if has_begun else without_too_large(job)
    return _picked(kept, ("spec", "status"))


def _project_network_policy(policy: Manifest) -> Manifest:
    return _picked(policy, ("spec",))


def _project_pod(pod: Manifest) -> Manifest:
    spec, status = mapping_at(pod, "spec"), mapping_at(pod, "status")
    kept_spec = _picked(spec, ("nodeName",)) | _lists(
        volumes=(volume for _, volume in objects_at(spec, "volumes") if volume.get("name") == BUNDLE_VOLUME),
        containers=(
            {"name": TRAINER_CONTAINER, "env": [{"name": "TF_CONFIG", "value": shorten_tf_config(text)}]}
            for text in _tf_configs(spec)
        ),
    )
    kept_status = _picked(status, ("phase", "reason", "message", "podIP")) | _lists(
        conditions=(
            _picked(condition, ("type", "status", "reason", "message"))
            for _, condition in objects_at(status, "conditions")
            if condition.get("type") in _CONDITIONS
        ),
        containerStatuses=(
            _picked(container, ("name", "state"))
            for _, container in objects_at(status, "containerStatuses")
            if container.get("name") == TRAINER_CONTAINER
        ),
    )
    return {"spec": kept_spec, "status": kept_status}


def _tf_configs(spec: Mapping[str, Any]) -> Iterable[str]:
    for _, container in objects_at(spec, "containers"):
        if container.get("name") == TRAINER_CONTAINER:
            for _, variable in objects_at(container, "env"):
                if variable.get("name") == "TF_CONFIG" and isinstance(variable.get("value"), str):
                    yield variable["value"]


def _picked(source: Mapping[str, Any], names: Iterable[str]) -> Manifest:
    return {name: source[name] for name in names if name in source}


def _lists(**parts: Iterable[Mapping[str, Any]]) -> Manifest:
    """Return those that aren't empty."""
    return {name: items for name, part in parts.items() if (items := list(part))}


_PARTS: Mapping[str, Callable[[Manifest], Manifest]] = {
    "TrainJob": _project_job,
    "Pod": _project_pod,
    "NetworkPolicy": _project_network_policy,
}
