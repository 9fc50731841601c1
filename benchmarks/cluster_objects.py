"""The objects that a run on a cluster is made of, beside the job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from training_run import CLAIM, SCRIPT, SETTINGS

Manifest = dict[str, Any]

OUTPUT = "/output"
HOSTNAME = "kubernetes.io/hostname"
_FOLDER = "/toy"
_SLEEP = ["python3", "-c", "import signal; signal.pause()"]
_MODES = ["ReadWriteMany"]
_SIZE = "1Gi"


def toy_script() -> Manifest:
    """Return the ConfigMap that brings the script: a standby needs a file, and the image hasn't got it."""
    return _object("v1", "ConfigMap", "toy", data={SCRIPT.name: SCRIPT.read_text()})


def toy_pod(image: str, variables: Sequence[Mapping[str, str]]) -> Manifest:
    """Return the spec of the job's pods, one that the restricted Pod Security standard lets in."""
    settings = [{"name": name, "value": value} for name, value in SETTINGS.items()]
    container = {
        "name": "trainer",
        "image": image,
        "command": ["python", f"{_FOLDER}/{SCRIPT.name}"],
        "env": [*variables, *settings],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
        "volumeMounts": [{"name": "toy", "mountPath": _FOLDER}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "securityContext": {
            "runAsNonRoot": True,
            "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [{"name": "toy", "configMap": {"name": "toy"}}],
        "containers": [container],
    }


def observer(name: str, pod: Manifest) -> Manifest:
    """Return a pod like the job's, at rest, with the volume that the job's output goes to."""
    (container,) = pod["containers"]
    mounts = [*container["volumeMounts"], {"name": "output", "mountPath": OUTPUT}]
    output = {"name": "output", "persistentVolumeClaim": {"claimName": CLAIM}}
    spec = {
        **pod,
        "volumes": [*pod["volumes"], output],
        "containers": [{**container, "command": _SLEEP, "volumeMounts": mounts}],
        "terminationGracePeriodSeconds": 0,
    }
    return _object("v1", "Pod", name, spec=spec)


def killer(name: str, node: str, image: str) -> Manifest:
    """Return a pod that sees all processes of a node and may end them."""
    # SYS_PTRACE: to read the environment of others' processes, by which they are found.
    rights = {"runAsUser": 0, "capabilities": {"add": ["KILL", "SYS_PTRACE"]}}
    spec = {
        "nodeName": node,
        "hostPID": True,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "killer", "image": image, "command": _SLEEP, "securityContext": rights}],
    }
    return _object("v1", "Pod", name, spec=spec)


def claim(*, volume: str = "") -> Manifest:
    """Return the claim: of this volume, or of what the default StorageClass makes."""
    spec: Manifest = {"accessModes": _MODES, "resources": {"requests": {"storage": _SIZE}}}
    if volume:
        spec |= {"volumeName": volume, "storageClassName": ""}
    return _object("v1", "PersistentVolumeClaim", CLAIM, spec=spec)


def volume(name: str, hostname: str, folder: Path) -> Manifest:
    """Return a volume that is a folder of one node, whose hostname label is given."""
    on_the_node = {"key": HOSTNAME, "operator": "In", "values": [hostname]}
    spec = {
        "capacity": {"storage": _SIZE},
        "accessModes": _MODES,
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "",
        "local": {"path": str(folder)},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_the_node]}]}},
    }
    return _object("v1", "PersistentVolume", name, spec=spec)


def _object(version: str, kind: str, name: str, **rest: Any) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **rest}
