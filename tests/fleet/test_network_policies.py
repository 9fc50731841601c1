"""The NetworkPolicies of jobs and of the controller where the network enforces them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from testbed import images, policies
from testbed.claims import NodeCluster
from testbed.waiting import until

from support.kube.digits_job import (
    has_trained,
    live_pod,
    nodes_for_jobs,
    start,
    successor,
    trains_again,
)

TENSORFLOW, AGENT, CONTROLLER, OTHER = 2222, 2223, 8080, 8000
REACH = """
import socket, sys
host, port = sys.argv[1:]
try:
    socket.create_connection((host, int(port)), timeout=3)
    print("reached")
except OSError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[NodeCluster]:
    """Two nodes for jobs, beside the one of the control plane and the controller."""
    with nodes_for_jobs(2) as made:
        yield made


def stranger(cluster: NodeCluster, namespace: str, node: str) -> tuple[str, str]:
    """A pod of nobody's job on this node, which serves; return its namespace and name once it runs."""
    serve = ["python3", "-m", "http.server", str(OTHER)]
    container = {"name": "main", "image": images.operator().name, "command": serve}
    spec = {"containers": [container], "nodeName": node, "terminationGracePeriodSeconds": 1}
    name = f"stranger-{node}"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    cluster.apply(pod, namespace=namespace)
    cluster.kubectl(
        "wait", f"pod/{name}", "-n", namespace, "--for=condition=Ready", "--timeout=1m", timeout=70
    )
    return namespace, name


def reaches(cluster: NodeCluster, pod: tuple[str, str], host: str, port: int) -> bool:
    """Whether a program in the pod gets a connection."""
    namespace, name = pod
    command = ("exec", name, "-n", namespace, "--", "python3", "-c", REACH, host, str(port))
    return cluster.kubectl(*command).strip() == "reached"


def controller_address(cluster: NodeCluster) -> str:
    selector = "app.kubernetes.io/component=controller"
    pods = cluster.get("pods", namespace="trainjob-system", selector=selector)["items"]
    return str(pods[0]["status"]["podIP"])


def test_strangers_reach_no_port_of_a_job_and_its_own_pods_do(cluster: NodeCluster) -> None:
    namespace = cluster.create_namespace()
    claim = cluster.claim(namespace)
    start(cluster, claim, "--epochs", "100000")
    has_trained(cluster, claim)
    places = [(namespace, "testbed-2"), (namespace, "testbed-3"), (cluster.create_namespace(), "testbed-2")]
    strangers = [stranger(cluster, *place) for place in places]
    old = live_pod(cluster, claim, "worker-1")
    workers = [live_pod(cluster, claim, name)["status"]["podIP"] for name in ("worker-0", "worker-1")]
    doors = [(host, port) for host in workers for port in (TENSORFLOW, AGENT)]
    doors += [(controller_address(cluster), CONTROLLER)]
    tries = [(pod, *door) for pod in strangers for door in doors]
    assert all(reaches(cluster, *each) for each in tries), "the network stops them by itself"

    policies.enforce(cluster)
    for each in tries:
        until(lambda each=each: not reaches(cluster, *each), what=f"an end of {each}", seconds=60)
    cluster.kubectl("delete", "pod", old["metadata"]["name"], "-n", namespace, "--wait=false")
    new = successor(cluster, claim, "worker-1", old)
    trains_again(cluster, claim, 2)
    assert not any(reaches(cluster, *each) for each in tries if each[1] != old["status"]["podIP"])
    host = new["status"]["podIP"]
    for pod in strangers:
        assert not reaches(cluster, pod, host, TENSORFLOW)
        assert not reaches(cluster, pod, host, AGENT)
    leader = live_pod(cluster, claim, "worker-0")["metadata"]["name"]
    assert reaches(cluster, (namespace, leader), host, TENSORFLOW)
    assert reaches(cluster, (namespace, leader), host, AGENT)
    for there, name in strangers:
        host = cluster.get("pod", name, namespace=there)["status"]["podIP"]
        assert all(reaches(cluster, pod, host, OTHER) for pod in strangers), "no policy is about these"
    cluster.delete("tj", "--all", namespace=namespace)
