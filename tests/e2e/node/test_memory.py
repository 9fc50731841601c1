"""Workers that are killed for memory get more of it: in their living pods, or in larger ones."""

from __future__ import annotations

from typing import Any

import pytest
from testbed import images
from testbed.claims import NodeCluster
from testbed.waiting import until

from support.kube.faults import faulty_job
from support.kube.real_pods import script_job, touch, wait_for
from trainjob.core.memory import bytes_of

HOARDING = """
if index == 1:
    train_until(f"{job}.fault")
    hoard = bytes([1]) * 2**20 * 80
train_until("end")
"""
"""On request worker 1 keeps 80 MiB, in each attempt: with its interpreters that is more than 96 MiB."""

SMALL = {"resources": {"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "96Mi"}}}
WORKERS = {"replicas": 2, "maxAllowed": {"memory": "192Mi"}}


TRAINING = """
import hashlib, json, os
import keras
import numpy as np

task = json.loads(os.environ["TF_CONFIG"])["task"]
kept = []

class Hoard(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 6 and task["index"] == 1:
            kept.append(bytes([1]) * 2**20 * int(os.environ["HOARD"]))

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(1024, 8)).astype("float32")
layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]
model = keras.Sequential([keras.Input((8,)), *layers])
model.compile("adam", "mse")
model.fit(x, x.sum(axis=1), batch_size=64, epochs=12, verbose=0, callbacks=[Hoard()])
print("weights", hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest(), flush=True)
"""


def workers_of(cluster: NodeCluster, namespace: str, name: str) -> list[dict[str, Any]]:
    selector = f"trainjob.dev/job={name},trainjob.dev/live=true"
    pods: list[dict[str, Any]] = cluster.get("pods", namespace=namespace, selector=selector)["items"]
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))


def given_memory(pod: dict[str, Any]) -> str:
    """The limit that the kubelet has given the pod's container."""
    statuses = pod["status"].get("containerStatuses") or [{}]
    return str(statuses[0].get("resources", {}).get("limits", {}).get("memory"))


def trains_with(cluster: NodeCluster, namespace: str, name: str, memory: str) -> None:
    """Wait until all workers have this limit and train, and nothing was counted.

    A worker that restarts before its pod is resized is killed again with the old limit.
    """

    def is_raised() -> bool:
        given = [given_memory(pod) for pod in workers_of(cluster, namespace, name)]
        status = cluster.get("tj", name, namespace=namespace)["status"]
        said = f"training on 2 workers with {memory} of memory each"
        return given == [memory] * 2 and status["state"] == "Running" and said in status["message"]

    until(is_raised, what=f"two workers that train with {memory}", seconds=120, every=0.5)
    status = cluster.get("tj", name, namespace=namespace)["status"]
    assert status["worker"]["memory"] == memory
    assert status["restarts"]["counted"] == 0, cluster.kubectl("describe", f"tj/{name}", "-n", namespace)


def test_living_pods_get_more_memory(installed: NodeCluster, restricted: str) -> None:
    installed.apply(faulty_job("growing", HOARDING, container=SMALL, worker=WORKERS), namespace=restricted)
    wait_for(installed, restricted, "growing", "jsonpath={.status.state}=Running")
    before = [pod["metadata"]["uid"] for pod in workers_of(installed, restricted, "growing")]
    touch(installed, restricted, "growing", "growing.fault")
    trains_with(installed, restricted, "growing", "144Mi")
    pods = workers_of(installed, restricted, "growing")
    # Worker 1's pod stays where the kernel kills the process alone (cgroup v1).
    assert pods[0]["metadata"]["uid"] == before[0]
    assert [pod["spec"]["containers"][0]["resources"]["requests"]["memory"] for pod in pods] == ["48Mi"] * 2
    story = installed.kubectl("describe", "tj/growing", "-n", restricted)
    assert "the memory of all workers is raised from 96Mi to 144Mi" in story
    touch(installed, restricted, "growing", "end")
    wait_for(installed, restricted, "growing", "condition=Complete")


def fill_the_nodes(cluster: NodeCluster, namespace: str, *, free: int) -> None:
    """Request all memory of the nodes but so many bytes on each; nothing is used."""
    pods = cluster.get("pods", "--all-namespaces", field_selector="status.phase=Running")["items"]
    nodes = [node for node in cluster.get("nodes")["items"] if not node["spec"].get("taints")]
    for node in nodes:
        name = node["metadata"]["name"]
        requests = [
            bytes_of(container.get("resources", {}).get("requests", {}).get("memory", "0")) or 0
            for pod in pods
            for container in pod["spec"]["containers"]
            if pod["spec"].get("nodeName") == name
        ]
        filling = (bytes_of(node["status"]["allocatable"]["memory"]) or 0) - sum(requests) - free
        container = {
            "name": "filler",
            "image": images.operator().name,
            "command": ["sleep", "600"],
            "resources": {"requests": {"memory": str(filling)}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
        spec = {
            "nodeSelector": {"kubernetes.io/hostname": name},
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        }
        metadata = {"name": f"filler-{name}", "labels": {"filler": "yes"}}
        cluster.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, namespace=namespace
        )
    cluster.kubectl(
        "wait", "pod", "-l", "filler=yes", "-n", namespace, "--for=condition=Ready", "--timeout=60s"
    )


@pytest.mark.nightly
def test_where_the_node_has_no_room_larger_pods_come(installed: NodeCluster, restricted: str) -> None:
    installed.apply(faulty_job("cramped", HOARDING, container=SMALL, worker=WORKERS), namespace=restricted)
    wait_for(installed, restricted, "cramped", "jsonpath={.status.state}=Running")
    before = [pod["metadata"]["uid"] for pod in workers_of(installed, restricted, "cramped")]
    fill_the_nodes(installed, restricted, free=8 * 2**20)
    touch(installed, restricted, "cramped", "cramped.fault")
    until(
        lambda: "PodOutgrown" in installed.kubectl("describe", "tj/cramped", "-n", restricted),
        what="the replacement of pods that can't be resized",
        seconds=120,
        every=0.5,
    )
    installed.kubectl("delete", "pod", "-l", "filler=yes", "-n", restricted)
    trains_with(installed, restricted, "cramped", "144Mi")
    # One that finds room once the filler is gone may be resized after all.
    assert [pod["metadata"]["uid"] for pod in workers_of(installed, restricted, "cramped")] != before
    touch(installed, restricted, "cramped", "end")
    wait_for(installed, restricted, "cramped", "condition=Complete")


def weights_of(cluster: NodeCluster, namespace: str, name: str, hoard: int) -> str:
    """What worker 0 prints at the end, if worker 1 keeps so many MiB from its seventh epoch on."""
    container = {
        "image": images.trainer().name,
        "command": ["python", "-u", "-c", TRAINING],
        "env": [{"name": "HOARD", "value": str(hoard)}],
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "1Gi"}},
    }
    worker = {"replicas": 2, "maxAllowed": {"memory": "4Gi"}}
    cluster.apply(script_job(name, "", container=container, worker=worker), namespace=namespace)
    job = wait_for(cluster, namespace, name, "condition=Complete")
    assert job["status"]["restarts"]["counted"] == 0
    assert job["status"]["worker"].get("memory", "") == ("1536Mi" if hoard else "")
    selector = f"trainjob.dev/job={name},trainjob.dev/role=worker,trainjob.dev/index=0"
    log = cluster.kubectl("logs", "-n", namespace, "-l", selector, "--tail=-1")
    (line,) = {line for line in log.splitlines() if line.startswith("weights ")}
    return line


@pytest.mark.nightly
def test_a_training_that_gets_more_memory_ends_with_the_same_weights(
    installed: NodeCluster, restricted: str
) -> None:
    undisturbed = weights_of(installed, restricted, "undisturbed", 0)
    assert weights_of(installed, restricted, "killed", 900) == undisturbed
