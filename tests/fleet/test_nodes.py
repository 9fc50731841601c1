"""What one node can't show: real TensorFlow pods on nodes that are lost, cut off, drained and brought back.

The testbed's first node has the control plane and the controller; the jobs' pods run on three others.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from testbed import KubectlError, images
from testbed.claims import Claim, NodeCluster
from testbed.nodes import Cut, JoinedNode
from testbed.waiting import until

from support.kube.digits_job import (
    HOST,
    MINUTES,
    completed,
    has_trained,
    is_evicted,
    is_training_without_a_checkpoint,
    largest_difference,
    live_pod,
    live_uid,
    missing,
    node_of,
    nodes_for_jobs,
    output,
    pods,
    resumed,
    start,
    successor,
    training_processes,
    trains_again,
)
from support.kube.real_pods import describe

EQUAL = 1e-6
"""The aim of benchmarks/chaos.py, too."""
APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"trainjob.dev/job": "digits"}}, "topologyKey": HOST}
        ]
    }
}
"""A worker never shares a node with another replica."""
RARELY = ("--checkpoint-every", "1000000")
"""A checkpoint is then one of a replica that was asked to stop."""
SHORTLY = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute",
           "tolerationSeconds": 5}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[NodeCluster]:
    """Three nodes for jobs, beside the one of the control plane and the controller."""
    with nodes_for_jobs(3) as made:
        made.kubectl("cordon", "testbed")
        yield made


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
    assert cluster.get("tj", "digits", namespace=claim.namespace)["status"]["restarts"]["counted"] == 0


def test_training_goes_on_with_fewer_workers_and_grows_back_with_the_node(
    cluster: NodeCluster, claim: Claim
) -> None:
    worker = {"replicas": 2, "minReplicas": 1, "affinity": APART}
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
        assert status["restarts"]["counted"] == 0


def test_a_drain_keeps_the_budget_and_saves_first(
    cluster: NodeCluster, claim: Claim, undisturbed: Path
) -> None:
    workers = {"trainjob.dev/job": "digits", "trainjob.dev/role": "worker"}
    budget = {"selector": {"matchLabels": workers}, "maxUnavailable": 0}
    meta = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "digits"}}
    cluster.apply({**meta, "spec": budget}, namespace=claim.namespace)
    start(cluster, claim, *RARELY)
    is_training_without_a_checkpoint(cluster, claim)
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
    status = completed(cluster, claim)
    assert resumed(cluster, claim)
    assert (status["restarts"]["notCounted"], status["restarts"]["stepsLost"]) == (1, 0)
    assert largest_difference(undisturbed, output(claim)) <= EQUAL


@contextmanager
def outranked(cluster: NodeCluster, claim: Claim, node: JoinedNode) -> Iterator[None]:
    """A pod that needs all of a node's processors, and goes before pods without a priority."""
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    cluster.apply({**head, "metadata": {"name": "urgent"}, "value": 1000})
    cpus = cluster.get("node", node.name)["status"]["allocatable"]["cpu"]
    container = {
        "name": "main", "image": images.operator().name, "command": ["sleep", "1d"],
        "resources": {"requests": {"cpu": cpus}},
    }  # fmt: skip
    spec = {
        "containers": [container], "nodeSelector": {HOST: node.name}, "priorityClassName": "urgent",
        "terminationGracePeriodSeconds": 1,
    }  # fmt: skip
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "urgent"}, "spec": spec}
    cluster.apply(pod, namespace=claim.namespace)
    try:
        wait = ("wait", "pod/urgent", "-n", claim.namespace, "--for=jsonpath={.status.phase}=Running")
        cluster.kubectl(*wait, "--timeout=3m", timeout=190)
        yield
    finally:
        cluster.delete("pod", "urgent", namespace=claim.namespace)


def test_a_preempted_worker_saves_first_and_goes_on_once_there_is_room(
    cluster: NodeCluster, claim: Claim, undisturbed: Path
) -> None:
    start(cluster, claim, *RARELY, worker={"replicas": 2, "affinity": APART})
    is_training_without_a_checkpoint(cluster, claim)
    old, kept = live_pod(cluster, claim, "worker-1"), live_uid(cluster, claim, "worker-0")
    node = node_of(cluster, old)
    with outranked(cluster, claim, node):
        waits = "worker 1 can't start: Unschedulable"
        until(lambda: waits in describe(cluster, claim.namespace, "digits"), what=waits, seconds=60)
        story = describe(cluster, claim.namespace, "digits")
        assert f"worker 1 on node {node.name} was preempted by a pod of higher priority" in story
    new = successor(cluster, claim, "worker-1", old)
    assert new["spec"]["nodeName"] == node.name
    trains_again(cluster, claim, 2)
    assert live_uid(cluster, claim, "worker-0") == kept
    status = completed(cluster, claim)
    assert resumed(cluster, claim)
    assert (status["restarts"]["notCounted"], status["restarts"]["stepsLost"]) == (1, 0)
    assert largest_difference(undisturbed, output(claim)) <= EQUAL


WARNING = 30
"""Seconds between the warning and the end of a spot node; clouds' handlers drain it in less."""


def test_a_job_saves_before_a_spot_node_ends_and_goes_on_elsewhere(
    cluster: NodeCluster, claim: Claim, undisturbed: Path
) -> None:
    start(cluster, claim, *RARELY)
    is_training_without_a_checkpoint(cluster, claim)
    old = live_pod(cluster, claim, "worker-0")
    node = node_of(cluster, old)
    end = time.monotonic() + WARNING
    with cordoned(cluster, node):
        drain = ("drain", node.name, "--force", "--delete-emptydir-data", f"--grace-period={WARNING - 10}")
        cluster.kubectl(*drain, f"--timeout={WARNING - 5}s", timeout=WARNING)
        time.sleep(max(0, end - time.monotonic()))
        with dead(node):
            new = successor(cluster, claim, "worker-0", old)
            assert new["spec"]["nodeName"] != node.name
            trains_again(cluster, claim, 2)
            status = completed(cluster, claim)
    assert resumed(cluster, claim)
    assert (status["restarts"]["notCounted"], status["restarts"]["stepsLost"]) == (1, 0)
    assert largest_difference(undisturbed, output(claim)) <= EQUAL


def softly(cluster: NodeCluster, node: JoinedNode) -> dict[str, Any]:
    """The kubelet's configuration that asks pods to leave whatever the node's memory."""
    return {
        "evictionSoft": {"memory.available": "99%"}, "evictionSoftGracePeriod": {"memory.available": "1s"},
        "evictionMaxPodGracePeriod": 30,
    }  # fmt: skip


def at_once(cluster: NodeCluster, node: JoinedNode) -> dict[str, Any]:
    """One that ends them: it takes more than there is, and leaves enough for what runs to be let in again."""
    summary = cluster.kubectl("get", "--raw", f"/api/v1/nodes/{node.name}/proxy/stats/summary")
    memory = json.loads(summary)["node"]["memory"]
    free = memory["availableBytes"] + memory["workingSetBytes"] // 2
    return {"evictionHard": {"memory.available": str(free)}}


@pytest.mark.parametrize("pressure", [softly, at_once])
def test_a_worker_that_is_evicted_for_its_nodes_memory_goes_on_elsewhere(
    cluster: NodeCluster,
    claim: Claim,
    undisturbed: Path,
    pressure: Callable[[NodeCluster, JoinedNode], dict[str, Any]],
) -> None:
    saves = pressure is softly
    start(cluster, claim, *(RARELY if saves else ()))
    (is_training_without_a_checkpoint if saves else has_trained)(cluster, claim)
    old = live_pod(cluster, claim, "worker-1")
    node = node_of(cluster, old)
    node.restart_kubelet(**pressure(cluster, node))
    try:
        new = successor(cluster, claim, "worker-1", old)
        assert new["spec"]["nodeName"] != node.name
        trains_again(cluster, claim, 2)
        status = completed(cluster, claim)
    finally:
        node.restart_kubelet()
    first = status["firstFailure"]
    assert (first["rank"], first["node"], first["reason"]) == ("worker-1", node.name, "Evicted")
    assert "low on resource: memory" in first["message"]
    assert resumed(cluster, claim)
    assert status["restarts"]["notCounted"] == 1
    assert largest_difference(undisturbed, output(claim)) <= EQUAL
