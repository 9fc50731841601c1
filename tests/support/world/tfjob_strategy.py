"""Any TFJob that makes a TrainJob, for Hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

POLICIES = ("Always", "OnFailure", "Never", "ExitCode", "", None)
NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
TEXTS = st.dictionaries(NAMES, NAMES, max_size=2)


def some(fields: dict[str, SearchStrategy[Any]]) -> SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


SCHEDULING = some(
    {
        "minAvailable": st.integers(1, 9),
        "queue": NAMES,
        "minResources": st.just({"cpu": "4"}),
        "priorityClass": st.sampled_from(["", "low", "high"]),
        "scheduleTimeoutSeconds": st.integers(1, 600),
        "unheard": st.booleans(),
    }
)
RUN_POLICY = some(
    {
        "cleanPodPolicy": st.sampled_from(["All", "Running", "None", "", None]),
        "ttlSecondsAfterFinished": st.integers(0, 10**6),
        "activeDeadlineSeconds": st.integers(1, 2**40),
        "backoffLimit": st.integers(0, 9),
        "suspend": st.booleans(),
        "managedBy": st.sampled_from(["", "kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"]),
        "schedulingPolicy": SCHEDULING,
        "unheard": st.booleans(),
    }
)
METADATA = some(
    {
        "namespace": NAMES,
        "labels": TEXTS | st.just({"kueue.x-k8s.io/queue-name": "research"}),
        "annotations": TEXTS | st.just({"kubectl.kubernetes.io/last-applied-configuration": "{}"}),
        "uid": NAMES,
        "finalizers": st.just(["example.com/keep"]),
        "generateName": NAMES,
    }
)
SOURCES = st.sampled_from(
    [
        {"persistentVolumeClaim": {"claimName": "one"}},
        {"persistentVolumeClaim": {"claimName": "one", "readOnly": True}},
        {"persistentVolumeClaim": {"claimName": "two", "readOnly": False}},
        {"nfs": {"server": "nfs.example.com", "path": "/a"}},
        {"emptyDir": {}},
        {"configMap": {"name": "settings"}},
        {
            "downwardAPI": {
                "items": [
                    {
                        "path": "m",
                        "resourceFieldRef": {"containerName": "tensorflow", "resource": "limits.cpu"},
                    }
                ]
            }
        },
    ]
)
PATHS = st.sampled_from(["/a", "/b", "/a/", "/output", "/trainjob-output", "/data/x"])
VARIABLES = st.lists(
    st.sampled_from(["TF_CONFIG", "TRAINJOB_X", "MODE", "HOME"]).map(
        lambda name: {"name": name, "value": "v"}
    ),
    max_size=3,
)
PORTS = st.sampled_from(
    [
        [],
        [{"name": "tfjob-port", "containerPort": 2222}],
        [{"name": "tfjob-port", "containerPort": 5000}, {"name": "board", "containerPort": 6006}],
    ]
)
RESOURCES = st.sampled_from([{}, {"requests": {"cpu": "1"}}, {"limits": {"nvidia.com/gpu": 1}}])
CONTAINER = some(
    {
        "env": VARIABLES,
        "ports": PORTS,
        "resources": RESOURCES,
        "command": st.just(["python", "train.py"]),
        "lifecycle": st.just({"preStop": {"exec": {"command": ["sync"]}}}),
    }
)
POD = some(
    {
        "nodeSelector": TEXTS,
        "tolerations": st.sampled_from([[], [{"operator": "Exists"}]]),
        "affinity": st.sampled_from(
            [
                {},
                {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}
                    }
                },
            ]
        ),
        "priorityClassName": st.sampled_from(["low", "high"]),
        "restartPolicy": st.sampled_from(["Never", "OnFailure"]),
        "hostNetwork": st.booleans(),
        "hostname": NAMES,
        "subdomain": NAMES,
        "schedulerName": st.sampled_from(["default-scheduler", "volcano"]),
        "serviceAccountName": NAMES,
        "automountServiceAccountToken": st.booleans(),
        "initContainers": st.just([{"name": "fetch", "image": "f"}]),
    }
)


@st.composite
def templates(draw: st.DrawFn) -> dict[str, Any]:
    """Return pod templates, volumes and their mounts together."""
    volumes = [
        {"name": f"v{index}", **source} for index, source in enumerate(draw(st.lists(SOURCES, max_size=3)))
    ]
    paths = draw(
        st.lists(PATHS, min_size=len(volumes), max_size=len(volumes), unique_by=lambda p: p.rstrip("/"))
    )
    mounts = [
        {"name": volume["name"], "mountPath": path, **draw(some({"readOnly": st.booleans()}))}
        for volume, path in zip(volumes, paths, strict=True)
    ]
    container = {"name": "tensorflow", "image": "i", **draw(CONTAINER)}
    pod: dict[str, Any] = {"containers": [container], **draw(POD)}
    if volumes:
        container["volumeMounts"] = mounts
        pod["volumes"] = volumes
    if draw(st.booleans()):
        pod["containers"].append({"name": "sidecar", "image": "s", "volumeMounts": mounts})
    metadata = draw(
        some({"labels": TEXTS, "annotations": TEXTS, "name": NAMES, "creationTimestamp": st.none()})
    )
    return {"spec": pod, **({"metadata": metadata} if metadata else {})}


@st.composite
def tfjobs(draw: st.DrawFn) -> dict[str, Any]:
    """Return TFJobs; roles often have one template."""
    shared = draw(templates())
    kinds = draw(
        st.lists(st.sampled_from(["Chief", "Master", "PS", "Evaluator", "worker"]), unique=True, max_size=4)
    )
    if {"Chief", "Master"} <= set(kinds):
        kinds.remove("Master")
    if "worker" not in kinds and (not {"Chief", "Master"} & set(kinds) or draw(st.booleans())):
        kinds.append("Worker")
    replicas = {}
    for kind in kinds:
        entry: dict[str, Any] = {"template": draw(st.just(shared) | templates())}
        entry |= draw(some({"restartPolicy": st.sampled_from(POLICIES)}))
        least = 1 if kind.lower() == "worker" else 0
        entry |= draw(some({"replicas": st.integers(least, 4)}))
        replicas[kind] = entry
    if all(
        e.get("replicas") == 0 for k, e in replicas.items() if k in ("Chief", "Master", "Worker", "worker")
    ):
        replicas["Worker"] = {"template": shared}
    spec = draw(
        some(
            {
                "runPolicy": RUN_POLICY,
                "successPolicy": st.sampled_from(["", "AllWorkers", None]),
                "enableDynamicWorker": st.booleans(),
                "cleanPodPolicy": st.sampled_from(["All", "Running"]),
                "ttlSecondsAfterFinishing": st.integers(0, 9),
                "unheard": st.booleans(),
            }
        )
    )
    return {
        "apiVersion": draw(st.sampled_from(["kubeflow.org/v1", "kubeflow.org/v1beta2"])),
        "kind": "TFJob",
        "metadata": {"name": draw(NAMES), **draw(METADATA)},
        "spec": {**spec, "tfReplicaSpecs": replicas},
        **draw(some({"status": st.just({"conditions": [{"type": "Running"}]})})),
    }
