"""The number of workers changes while a job trains: by its user, by the cluster, by a lost pod."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testbed import KubectlError, images
from testbed.claims import NodeCluster
from testbed.ports import free_ports
from testbed.waiting import until

from support.cli.program import trainjob
from support.kube.real_pods import describe, script_job, touch, wait_for

MINUTES = 4
"""Against hanging only."""

SEAT = "example.com/replica"
"""A resource that the test gives the node, one for each worker that there shall be room for."""

RUNNING = "jsonpath={.status.state}=Running"

WAITING = """
world = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"]
pathlib.Path("/output", f"{index}.{attempt}").write_text(str(len(world)))
until("go")
"""

BATCH = 12
TRAINING = f"""
import os, pathlib, time
import keras
import tensorflow as tf
from trainjob_trainer import train_and_evaluate

def pace(number):
    time.sleep(0.002)
    return number

def train():
    numbers = tf.data.Dataset.range(50 * {BATCH})
    paced = numbers.map(lambda number: tf.ensure_shape(tf.numpy_function(pace, [number], tf.int64), []))
    return paced.map(lambda number: (tf.random.stateless_normal([4], [7, number]), number % 2))

def model():
    net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return net

never = 10**8
train_and_evaluate(
    model, train, steps_per_epoch=never, global_batch={BATCH}, checkpoint_every=never, shuffle=False
)
"""
"""It saves only when it is asked to stop: what it resumes from was saved then."""

TENSORFLOW = {
    "image": images.trainer().name,
    "command": ["python", "-u", "-c", TRAINING],
    "env": [{"name": "TF_CPP_MIN_LOG_LEVEL", "value": "2"}, {"name": "CUDA_VISIBLE_DEVICES", "value": "-1"}],
    "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
}


@pytest.fixture(scope="module", autouse=True)
def shortage(installed: NodeCluster, restricted_module: str) -> Iterator[None]:
    """A job loses a worker, and there is no room for another: what comes of it takes a minute."""
    node = node_for_pods(installed)
    make_room(installed, node, 2)
    one_seat = {"resources": {"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {SEAT: "1"}}}
    job = script_job("short", WAITING, container=one_seat, worker={"replicas": 2, "minReplicas": 1})
    job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 5
    installed.apply(job, namespace=restricted_module)
    wait_for(installed, restricted_module, "short", RUNNING)
    make_room(installed, node, 1)
    lost = live_pod(installed, restricted_module, "short", 1)["metadata"]["name"]
    installed.kubectl("delete", "pod", lost, "-n", restricted_module, timeout=120)
    yield
    installed.delete("tj", "short", namespace=restricted_module)
    make_room(installed, node, None)


def node_for_pods(cluster: NodeCluster) -> str:
    """Return a node that takes any pod: a control plane's usually doesn't."""
    free = [node for node in cluster.get("nodes")["items"] if not node["spec"].get("taints")]
    name: str = free[0]["metadata"]["name"]
    return name


def make_room(cluster: NodeCluster, node: str, replicas: int | None) -> None:
    """Let the node have so many replicas, or none and not even the name."""
    room = {SEAT: None if replicas is None else str(replicas)}
    status = json.dumps({"status": {"capacity": room, "allocatable": room}})
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", status)


def live_pod(cluster: NodeCluster, namespace: str, job: str, index: int) -> dict[str, Any]:
    """Return the pod of a worker that training counts on."""
    selector = f"trainjob.dev/job={job},trainjob.dev/index={index},trainjob.dev/live=true"
    (pod,) = cluster.get("pods", namespace=namespace, selector=selector)["items"]
    found: dict[str, Any] = pod
    return found


def trains_on(cluster: NodeCluster, namespace: str, job: str, workers: str) -> dict[str, Any]:
    """Wait until the job says that it trains on so many; return its status."""

    def told() -> dict[str, Any]:
        status: dict[str, Any] = cluster.get("tj", job, namespace=namespace)["status"]
        return status if f"{status.get('message')},".startswith(f"training on {workers},") else {}

    return until(told, what=f"{job} on {workers}", seconds=60 * MINUTES, every=0.5)


def resumed(cluster: NodeCluster, namespace: str, beyond: int) -> int:
    """Wait until worker 0 has resumed beyond this step and gone on; return the step that it has reached."""
    progress: dict[str, Any] = {}

    def has_gone_on() -> bool:
        nonlocal progress
        progress = progress_of(cluster, namespace)
        return bool(progress.get("step", 0) > progress.get("resumedFrom", 0) > beyond)

    until(has_gone_on, what=f"training beyond step {beyond}", seconds=60 * MINUTES, every=0.5)
    return int(progress["step"])


def progress_of(cluster: NodeCluster, namespace: str) -> dict[str, Any]:
    """What worker 0 of `scaled` reports; nothing while it is starting."""
    show = ("sh", "-c", "cat /run/trainjob/state/progress.json || echo {}")
    try:
        name = live_pod(cluster, namespace, "scaled", 0)["metadata"]["name"]
        progress: dict[str, Any] = json.loads(cluster.kubectl("exec", name, "-n", namespace, "--", *show))
    except (KubectlError, ValueError):  # its pod is just being replaced
        return {}
    return progress


def profile(cluster: NodeCluster, namespace: str, folder: Path) -> None:
    """Have TensorFlow record worker 1, as docs/watching.md says."""
    pod, port = live_pod(cluster, namespace, "scaled", 1)["metadata"]["name"], free_ports(1)[0]
    forward = [cluster.kubectl_program, "port-forward", "-n", namespace, pod, f"{port}:2222"]
    with subprocess.Popen(forward, env=cluster.env, stdout=subprocess.PIPE, text=True) as forwarding:
        assert forwarding.stdout is not None
        try:
            assert "Forwarding from" in forwarding.stdout.readline()
            trace = "import tensorflow as tf; tf.profiler.experimental.client.trace"
            code = f"{trace}('grpc://127.0.0.1:{port}', '/output/scaled/logs', 1000)"
            subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
        finally:
            forwarding.terminate()
    words = ("cp", "scaled:logs/plugins", "plugins", "-n", namespace)
    done = trainjob(*words, cwd=folder, env=cluster.env)
    assert done.returncode == 0, done.stderr
    assert [one.stat().st_size > 0 for one in folder.glob("plugins/profile/*/*.xplane.pb")] == [True]


def test_a_job_is_profiled_and_scaled_and_preempted_and_continues(
    installed: NodeCluster, restricted_module: str, tmp_path: Path
) -> None:
    namespace = restricted_module
    job = script_job("scaled", "", workers=1, container=TENSORFLOW)
    installed.apply(job, namespace=namespace)
    wait_for(installed, namespace, "scaled", RUNNING)
    until(lambda: progress_of(installed, namespace).get("step", 0) > 0, what="a step", seconds=60 * MINUTES)

    installed.kubectl("scale", "tj/scaled", "--replicas=2", "-n", namespace)
    trains_on(installed, namespace, "scaled", "2 workers")
    reached = resumed(installed, namespace, 0)
    profile(installed, namespace, tmp_path)

    preempted, other = (live_pod(installed, namespace, "scaled", index) for index in (0, 1))
    installed.kubectl("delete", "pod", preempted["metadata"]["name"], "-n", namespace, timeout=120)
    trains_on(installed, namespace, "scaled", "2 workers")
    reached = resumed(installed, namespace, reached)
    assert live_pod(installed, namespace, "scaled", 1)["metadata"]["uid"] == other["metadata"]["uid"]

    installed.kubectl("scale", "tj/scaled", "--replicas=1", "-n", namespace)
    status = trains_on(installed, namespace, "scaled", "1 worker")
    resumed(installed, namespace, reached)
    events = installed.kubectl("get", "events", "-n", namespace)
    assert (status["restarts"]["counted"], status["restarts"]["notCounted"]) == (0, 1), f"{status}\n{events}"
    installed.delete("tj", "scaled", namespace=namespace)


def test_training_continues_without_a_worker_that_is_unavailable(
    installed: NodeCluster, restricted_module: str
) -> None:
    namespace = restricted_module
    status = trains_on(installed, namespace, "short", "1 worker")
    assert status["worker"]["unavailable"] == ["worker-1"]
    assert "continuing with 1 of 2 workers" in describe(installed, namespace, "short")
    node = node_for_pods(installed)
    make_room(installed, node, 2)
    status = trains_on(installed, namespace, "short", "2 workers")
    assert not status["worker"].get("unavailable")
    assert status["restarts"]["counted"] == 0
    assert installed.get("tj", "short", namespace=namespace)["spec"]["worker"]["replicas"] == 2
    assert worlds(installed, namespace) == {"0": ["2", "1", "2"], "1": ["2", "2"]}
    touch(installed, namespace, "short", "go")
    wait_for(installed, namespace, "short", "condition=Complete")


def worlds(cluster: NodeCluster, namespace: str) -> dict[str, list[str]]:
    """How many workers each process of `short` was told that there are, by index and in order."""
    name = live_pod(cluster, namespace, "short", 0)["metadata"]["name"]
    show = 'cd /output; for file in *.*; do echo "$file" "$(cat "$file")"; done'
    found: dict[str, list[str]] = {}
    for line in cluster.kubectl("exec", name, "-n", namespace, "--", "sh", "-c", show).splitlines():
        file, world = line.split()
        found.setdefault(file.partition(".")[0], []).append(world)
    return found
