"""What one node can't show: real TensorFlow pods on nodes that are lost, cut off, drained and brought back.

The testbed's first node has the control plane and the controller; the jobs' pods run on three others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from testbed import KubectlError, images, node_tier
from testbed.claims import Claim, NodeCluster
from testbed.nodes import Cut, JoinedNode
from testbed.waiting import until

from support.kube.real_pods import describe, wait_for

ROOT = Path(__file__).parents[2]
MINUTES = 15
"""Against hanging only."""

EPOCHS = 600
"""They take more than a minute, even on a free machine: a lost node is noticed within a quarter of one."""
EQUAL = 1e-6
"""The aim of benchmarks/chaos.py, too."""
RUNNING = "jsonpath={.status.state}=Running"
HOST = "kubernetes.io/hostname"
TRAINING = "^python digits.py"
"""The command line of a training process; its agent's begins in another way."""
SHORTLY = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute",
           "tolerationSeconds": 5}  # fmt: skip
DIFFERENCE = """
import sys
import numpy as np
import tensorflow as tf
one, other = (tf.train.load_checkpoint(folder + "/checkpoints") for folder in sys.argv[1:])
shapes = one.get_variable_to_shape_map()
assert shapes == other.get_variable_to_shape_map()
values = ((np.asarray(each.get_tensor(name), "float64") for each in (one, other)) for name in shapes)
print(max(float(np.max(np.abs(np.subtract(*pair)), initial=0)) for pair in values))
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[NodeCluster]:
    """Three nodes for jobs, beside the one of the control plane and the controller."""
    made = node_tier.start(die_with_us=True, joined=3)
    try:
        release = ("trainjob", str(ROOT / "charts" / "trainjob"), "-n", "trainjob-system")
        here = "nodeSelector.kubernetes\\.io/hostname=testbed"
        made.helm("install", *release, "--create-namespace", "--set", here, "--wait", timeout=200)
        made.kubectl("cordon", "testbed")
        yield made
    finally:
        node_tier.stop_own()


@pytest.fixture
def claim(cluster: NodeCluster) -> Iterator[Claim]:
    """A namespace of its own with a claim that all nodes reach; all nodes work when the test begins."""
    cluster.kubectl("wait", "nodes", "--all", "--for=condition=Ready", "--timeout=5m", timeout=310)
    namespace = cluster.create_namespace()
    yield cluster.claim(namespace)
    cluster.delete("tj", "--all", namespace=namespace)
    cluster.delete_namespace(namespace)


@pytest.fixture(scope="module")
def undisturbed(cluster: NodeCluster) -> Path:
    """The output of the same job where nothing happens."""
    namespace = cluster.create_namespace()
    claim = cluster.claim(namespace)
    start(cluster, claim)
    completed(cluster, claim)
    return output(claim)


def start(cluster: NodeCluster, claim: Claim, *options: str, **spec: Any) -> None:
    """Have the digits example train for long enough, each replica on a node of its own if there is room."""
    printed = cluster.kubectl(
        "create", "-f", ROOT / "examples" / "digits.yaml", "--dry-run=client", "-o", "json"
    )
    job = json.loads(printed)
    job["spec"] |= spec
    pod = job["spec"]["template"]["spec"]
    spread = {"maxSkew": 1, "topologyKey": HOST, "whenUnsatisfiable": "ScheduleAnyway"}
    pod["topologySpreadConstraints"] = [
        {**spread, "labelSelector": {"matchLabels": {"trainjob.dev/job": "digits"}}}
    ]
    pod["containers"][0]["command"] += ["--epochs", str(EPOCHS), *options]
    pod["containers"][0]["resources"]["requests"] = {"cpu": "100m", "memory": "512Mi"}
    cluster.apply({**job, "metadata": {"name": "digits"}}, namespace=claim.namespace)


def has_trained(cluster: NodeCluster, claim: Claim) -> None:
    """Wait until there is a checkpoint and the evaluator, if any, has scored one."""
    wait_for(cluster, claim.namespace, "digits", RUNNING)
    status = cluster.get("tj", "digits", namespace=claim.namespace)
    for known in ("output.checkpointStep", *(["evaluation"] if evaluates(status) else [])):
        wait_for(cluster, claim.namespace, "digits", f"jsonpath={{.status.{known}}}")


def evaluates(job: dict[str, Any]) -> bool:
    return bool(job["spec"].get("evaluator", {}).get("replicas", 1))


def completed(cluster: NodeCluster, claim: Claim) -> dict[str, Any]:
    """Wait for the end, which must be a good one; return the status."""
    wait = ("wait", "tj/digits", "-n", claim.namespace, "--for=jsonpath={.status.completionTime}")
    cluster.kubectl(*wait, f"--timeout={MINUTES}m", timeout=MINUTES * 60 + 10)
    status: dict[str, Any] = cluster.get("tj", "digits", namespace=claim.namespace)["status"]
    story = describe(cluster, claim.namespace, "digits")
    assert status["state"] == "Complete", story
    assert status["progress"]["step"] == status["progress"]["totalSteps"], story
    assert status["restarts"]["charged"] == 0, story
    return status


def output(claim: Claim) -> Path:
    assert claim.folder is not None
    return claim.folder / "digits"


def largest_difference(one: Path, other: Path) -> float:
    """Compare all variables of two final checkpoints: weights, optimizer, random state, metrics."""
    command = [sys.executable, "-c", DIFFERENCE, str(one), str(other)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout)


def pods(cluster: NodeCluster, claim: Claim, replica: str) -> dict[str, dict[str, Any]]:
    """The pods of a replica by uid, also those of which nobody knows whether they have ended."""
    role, _, index = replica.rpartition("-")
    selector = f"trainjob.dev/role={role},trainjob.dev/index={index}"
    found = cluster.get("pods", namespace=claim.namespace, selector=selector)["items"]
    return {pod["metadata"]["uid"]: pod for pod in found}


def live_pod(cluster: NodeCluster, claim: Claim, replica: str) -> dict[str, Any]:
    found = pods(cluster, claim, replica).values()
    (pod,) = [p for p in found if p["metadata"]["labels"].get("trainjob.dev/live") == "true"]
    return pod


def node_of(cluster: NodeCluster, pod: dict[str, Any]) -> JoinedNode:
    (node,) = [node for node in cluster.joined if node.name == pod["spec"]["nodeName"]]
    return node


def successor(cluster: NodeCluster, claim: Claim, replica: str, old: dict[str, Any]) -> dict[str, Any]:
    """Wait until another pod of the replica runs; return it."""

    def running() -> dict[str, Any] | None:
        for uid, pod in pods(cluster, claim, replica).items():
            if uid != old["metadata"]["uid"] and pod["status"]["phase"] == "Running":
                return pod
        return None

    return until(running, what=f"the next pod of {replica}", seconds=60 * MINUTES, every=0.2)


def trains_again(cluster: NodeCluster, claim: Claim, attempt: int) -> None:
    """Wait until training has taken a step in this attempt of its agents, or a later one."""

    def goes_on() -> bool:
        status = cluster.get("tj", "digits", namespace=claim.namespace)["status"]
        progress = status.get("progress", {})
        is_later = progress.get("attempt", 0) >= attempt
        return status["state"] in ("Running", "Complete") and is_later and bool(progress.get("step"))

    until(goes_on, what="training", seconds=60 * MINUTES, every=0.2)


def training_processes(node: JoinedNode) -> list[str]:
    """The training processes on a node, which may be cut off."""
    return node.enclosure.run("sh", "-c", f"pgrep -f '{TRAINING}' || true").split()


def is_evicted(pod: dict[str, Any]) -> bool:
    """Whether Kubernetes itself has noticed that the pod's node is lost."""
    return any(each["type"] == "DisruptionTarget" for each in pod["status"].get("conditions", ()))


@contextmanager
def measured(what: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{what}: {time.monotonic() - began:.1f} s")


@contextmanager
def dead(node: JoinedNode) -> Iterator[None]:
    node.die()
    try:
        yield
    finally:
        node.boot()


@contextmanager
def cordoned(cluster: NodeCluster, node: JoinedNode) -> Iterator[None]:
    cluster.kubectl("cordon", node.name)
    try:
        yield
    finally:
        cluster.kubectl("uncordon", node.name)


@contextmanager
def cut_off(node: JoinedNode, cut: Cut) -> Iterator[None]:
    node.cut_off(cut)
    try:
        yield
    finally:
        node.reconnect(cut)


# In a pod of each node: pods of the others, a Service, the API server, and what all have written.
ASK = """
import os, pathlib, socket, time, urllib.request
pathlib.Path("/data", os.environ["NODE"]).touch()
for name in {names}:
    while True:
        try:
            assert urllib.request.urlopen("http://%s.pods:8000/" % name, timeout=5).status == 200
            break
        except OSError:
            time.sleep(0.5)
assert urllib.request.urlopen("http://web:80/", timeout=10).status == 200
socket.create_connection(("kubernetes.default.svc", 443), timeout=10)
while len(list(pathlib.Path("/data").iterdir())) < {number}:
    time.sleep(0.2)
"""


def test_pods_of_all_nodes_reach_each_other_and_share_a_claim(cluster: NodeCluster, claim: Claim) -> None:
    names = [node.name for node in cluster.joined]
    for name, app, port in (("web", "web", 80), ("pods", "web", 8000)):
        spec: dict[str, Any] = {"selector": {"app": app}, "ports": [{"port": port, "targetPort": 8000}]}
        if name == "pods":
            spec["clusterIP"] = "None"
        service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
        cluster.apply(service, namespace=claim.namespace)
    for name in names:
        ask = ASK.format(names=names, number=len(names))
        serve = ["python3", "-m", "http.server", "8000", "--directory", "/tmp"]
        for kind, command in (("web", serve), ("ask", ["python3", "-c", ask])):
            container = {
                "name": "main", "image": images.operator().name, "command": command,
                "env": [{"name": "NODE", "value": name}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }  # fmt: skip
            spec = {
                "containers": [container], "restartPolicy": "Never", "nodeName": name,
                "terminationGracePeriodSeconds": 1, "securityContext": {"fsGroup": 1000},
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim.name}}],
            }  # fmt: skip
            if kind == "web":
                spec |= {"hostname": name, "subdomain": "pods"}
            meta = {"name": f"{kind}-{name}", "labels": {"app": kind}}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
            cluster.apply(pod, namespace=claim.namespace)
    done = ("wait", "pod", "-l", "app=ask", "-n", claim.namespace, "--for=jsonpath={.status.phase}=Succeeded")
    cluster.kubectl(*done, "--timeout=2m", timeout=130)


@pytest.mark.parametrize("replica", ["worker-1", "worker-0", "evaluator-0"])
def test_what_a_dead_node_ran_goes_on_elsewhere(
    cluster: NodeCluster, claim: Claim, undisturbed: Path, replica: str
) -> None:
    start(cluster, claim)
    has_trained(cluster, claim)
    others = {"worker-0", "worker-1", "evaluator-0"} - {replica}
    kept = {name: live_pod(cluster, claim, name)["metadata"]["uid"] for name in others}
    old = live_pod(cluster, claim, replica)
    node = node_of(cluster, old)
    with dead(node):
        with measured(f"{replica}: until its successor runs"):
            new = successor(cluster, claim, replica, old)
        assert new["spec"]["nodeName"] != node.name
        assert not is_evicted(pods(cluster, claim, replica)[old["metadata"]["uid"]])
        title = replica.replace("-", " ")
        sentence = f"{title} on node {node.name} can't be reached by the others"
        assert sentence in describe(cluster, claim.namespace, "digits")
        trains_again(cluster, claim, 1 if replica == "evaluator-0" else 2)
        assert {name: live_pod(cluster, claim, name)["metadata"]["uid"] for name in others} == kept
        status = completed(cluster, claim)
    assert status["evaluation"]["step"] == status["progress"]["step"]
    assert status["attempt"] == (1 if replica == "evaluator-0" else 2)
    assert largest_difference(undisturbed, output(claim)) <= EQUAL


CUTS = {
    "everything": Cut.ALL,
    "its peers": Cut.PEERS,
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_a_worker_0_that_is_cut_off_stops_by_itself_and_never_writes_beside_its_successor(
    cluster: NodeCluster, claim: Claim, undisturbed: Path, cut: Cut
) -> None:
    start(cluster, claim)
    has_trained(cluster, claim)
    old, kept = live_pod(cluster, claim, "worker-0"), live_pod(cluster, claim, "worker-1")
    node = node_of(cluster, old)
    assert training_processes(node)
    with cut_off(node, cut):
        until(lambda: not training_processes(node), what="the end of training there", seconds=60)
        new = successor(cluster, claim, "worker-0", old)
        assert new["spec"]["nodeName"] != node.name
        trains_again(cluster, claim, 2)
    until(lambda: old["metadata"]["uid"] not in pods(cluster, claim, "worker-0"), what="the old pod's end",
          seconds=60 * MINUTES, every=0.5)  # fmt: skip
    assert not training_processes(node)
    status = completed(cluster, claim)
    assert live_uid(cluster, claim, "worker-1") == kept["metadata"]["uid"]
    assert status["attempt"] == 2
    assert largest_difference(undisturbed, output(claim)) <= EQUAL


def live_uid(cluster: NodeCluster, claim: Claim, replica: str) -> str:
    uid: str = live_pod(cluster, claim, replica)["metadata"]["uid"]
    return uid


def test_worker_0_leaves_although_the_api_server_cannot_reach_its_node(
    cluster: NodeCluster, claim: Claim
) -> None:
    """The others reach it: training continues until Kubernetes evicts its pod, which its kubelet misses."""
    start(cluster, claim, "--epochs", "100000", worker={"replicas": 2, "tolerations": [SHORTLY]})
    has_trained(cluster, claim)
    old, kept = live_pod(cluster, claim, "worker-0"), live_uid(cluster, claim, "worker-1")
    node = node_of(cluster, old)
    with cut_off(node, Cut.API_SERVER):
        new = successor(cluster, claim, "worker-0", old)
        assert is_evicted(pods(cluster, claim, "worker-0")[old["metadata"]["uid"]])
        assert new["spec"]["nodeName"] != node.name
        trains_again(cluster, claim, 2)
        assert not training_processes(node)
        assert live_uid(cluster, claim, "worker-1") == kept
    until(lambda: old["metadata"]["uid"] not in pods(cluster, claim, "worker-0"), what="the old pod's end",
          seconds=60 * MINUTES, every=0.5)  # fmt: skip
    assert cluster.get("tj", "digits", namespace=claim.namespace)["status"]["restarts"]["charged"] == 0


def missing(cluster: NodeCluster, claim: Claim) -> list[str]:
    """The workers that training goes on without."""
    found: list[str] = cluster.get("tj", "digits", namespace=claim.namespace)["status"]["worker"].get(
        "without", []
    )
    return found


def test_training_goes_on_with_fewer_workers_and_grows_back_with_the_node(
    cluster: NodeCluster, claim: Claim
) -> None:
    apart = {"labelSelector": {"matchLabels": {"trainjob.dev/job": "digits"}}, "topologyKey": HOST}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    worker = {"replicas": 2, "minReplicas": 1, "affinity": affinity}
    with cordoned(cluster, cluster.joined[2]):
        start(cluster, claim, "--epochs", "100000", worker=worker, evaluator={"replicas": 0})
        has_trained(cluster, claim)
        old = live_pod(cluster, claim, "worker-1")
        with dead(node_of(cluster, old)):
            with measured("until training goes on with one worker"):
                until(lambda: missing(cluster, claim), what="training with one worker", seconds=60 * MINUTES)
                trains_again(cluster, claim, 2)
            assert "Unschedulable" in describe(cluster, claim.namespace, "digits")
        with measured("from the node's return until training goes on with both"):
            until(lambda: not missing(cluster, claim), what="training with both", seconds=60 * MINUTES)
            trains_again(cluster, claim, 3)
        assert live_pod(cluster, claim, "worker-1")["spec"]["nodeName"] == old["spec"]["nodeName"]
        status = cluster.get("tj", "digits", namespace=claim.namespace)["status"]
        assert status["message"].startswith("training on 2 workers")
        assert status["restarts"]["charged"] == 0


def test_a_drain_keeps_the_budget_and_saves_first(
    cluster: NodeCluster, claim: Claim, undisturbed: Path
) -> None:
    workers = {"trainjob.dev/job": "digits", "trainjob.dev/role": "worker"}
    budget = {"selector": {"matchLabels": workers}, "maxUnavailable": 0}
    meta = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "digits"}}
    cluster.apply({**meta, "spec": budget}, namespace=claim.namespace)
    start(cluster, claim, "--checkpoint-every", "1000000")
    wait_for(cluster, claim.namespace, "digits", RUNNING)
    wait_for(cluster, claim.namespace, "digits", "jsonpath={.status.progress.step}")
    old = live_pod(cluster, claim, "worker-1")
    node = node_of(cluster, old)
    drain = ("drain", node.name, "--force", "--delete-emptydir-data")
    try:
        with pytest.raises(KubectlError, match="disruption budget"):
            cluster.kubectl(*drain, "--timeout=10s")
        assert live_uid(cluster, claim, "worker-1") == old["metadata"]["uid"]
        cluster.apply({**meta, "spec": {**budget, "maxUnavailable": 1}}, namespace=claim.namespace)
        cluster.kubectl(*drain, "--timeout=3m", timeout=190)
        new = successor(cluster, claim, "worker-1", old)
        assert new["spec"]["nodeName"] != node.name
        trains_again(cluster, claim, 2)
    finally:
        cluster.kubectl("uncordon", node.name)
    leader = live_pod(cluster, claim, "worker-0")["metadata"]["name"]
    status = completed(cluster, claim)
    assert "resumed from step" in cluster.kubectl("logs", leader, "-n", claim.namespace, "--tail=-1")
    assert status["restarts"]["uncharged"] == 1
    assert largest_difference(undisturbed, output(claim)) <= EQUAL
