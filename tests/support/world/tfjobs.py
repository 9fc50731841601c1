"""Builders of TFJobs, and what became of them."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

from trainjob.convert import Conversion, convert

COMMAND = ["python", "train.py"]
SAMPLES = sorted((Path(__file__).parents[2] / "convert" / "tfjobs").glob("*.yaml"))


def build_replicas(
    count: int | None = None,
    policy: str | None = "OnFailure",
    *,
    container: dict[str, Any] | None = None,
    pod: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return an entry of tfReplicaSpecs; `container` and `pod` add to the template."""
    tensorflow = {
        "name": "tensorflow",
        "image": "example.com/scans:1",
        "command": COMMAND,
        **(container or {}),
    }
    template: dict[str, Any] = {"spec": {"containers": [tensorflow], **(pod or {})}}
    entry: dict[str, Any] = {"template": {**({"metadata": metadata} if metadata else {}), **template}}
    if count is not None:
        entry["replicas"] = count
    if policy is not None:
        entry["restartPolicy"] = policy
    return entry


def build_tfjob(
    replicas: dict[str, Any] | None = None, *, metadata: dict[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    """Return a TFJob of these replicas, by default two workers; `spec` adds to its spec."""
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "scans", **(metadata or {})},
        "spec": {**spec, "tfReplicaSpecs": replicas or {"Worker": build_replicas(2)}},
    }


def build_claim_mount(claim: str = "results", path: str = "/results", **mount: Any) -> dict[str, Any]:
    """Return keyword arguments for `build_replicas` that mount a claim."""
    return {
        "container": {"volumeMounts": [{"name": claim, "mountPath": path, **mount}]},
        "pod": {"volumes": [{"name": claim, "persistentVolumeClaim": {"claimName": claim}}]},
    }


def converted(tfjob: dict[str, Any], **options: Any) -> Conversion:
    """Convert a copy, and check that the original is left as it was."""
    before = deepcopy(tfjob)
    conversion = convert(tfjob, **options)
    assert tfjob == before
    return conversion


def spec_of(tfjob: dict[str, Any], **options: Any) -> dict[str, Any]:
    conversion = converted(tfjob, **options)
    assert conversion.refusals == ()
    spec: dict[str, Any] = conversion.manifest["spec"]
    return spec


def notes_of(tfjob: dict[str, Any], **options: Any) -> dict[str, str]:
    return {note.path: note.message for note in converted(tfjob, **options).notes}


def refusals_of(tfjob: dict[str, Any]) -> dict[str, str]:
    return {refusal.path: refusal.message for refusal in converted(tfjob).refusals}
