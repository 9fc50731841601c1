"""Restarts in place in real pods: agents that meet by cluster DNS, and a controller that hears from them."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

from testbed.claims import NodeCluster

from support.kube.real_pods import describe, script_job, touch, wait_for

TRAIN = """
pathlib.Path("/output", f"{role}-{index}.pid").write_text(str(os.getpid()))
pathlib.Path("/output", f"{role}-{index}.{attempt}").touch()
until("go")
"""
RUNNING = "jsonpath={.status.state}=Running"


def pods_of(cluster: NodeCluster, namespace: str) -> dict[str, dict[str, Any]]:
    """Return the pods that training counts on, by index."""
    selector = "trainjob.dev/job=toy,trainjob.dev/live=true"
    pods = cluster.get("pods", namespace=namespace, selector=selector)["items"]
    return {pod["metadata"]["labels"]["trainjob.dev/index"]: pod for pod in pods}


def uid_of(pod: dict[str, Any]) -> str:
    uid: str = pod["metadata"]["uid"]
    return uid


def start(cluster: NodeCluster, namespace: str) -> dict[str, dict[str, Any]]:
    """Have two workers train, and return their pods."""
    job = script_job("toy", TRAIN, workers=2)
    job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 5
    cluster.apply(job, namespace=namespace)
    wait_for(cluster, namespace, "toy", RUNNING)
    pods = pods_of(cluster, namespace)
    for index, pod in pods.items():
        run(cluster, namespace, pod, f"until [ -e /output/worker-{index}.1 ]; do sleep 0.1; done")
    return pods


def run(cluster: NodeCluster, namespace: str, pod: dict[str, Any], script: str) -> None:
    """Run a script in the pod's container."""
    cluster.kubectl("exec", pod["metadata"]["name"], "-n", namespace, "--", "sh", "-c", script)


def finish(cluster: NodeCluster, namespace: str) -> dict[str, Any]:
    """Let training end, and return the status."""
    touch(cluster, namespace, "toy", "go")
    status: dict[str, Any] = wait_for(cluster, namespace, "toy", "condition=Complete")["status"]
    return status


def test_a_process_that_is_killed_restarts_in_its_pod(installed: NodeCluster, restricted: str) -> None:
    before = start(installed, restricted)
    run(installed, restricted, before["1"], 'kill -9 "$(cat /output/worker-1.pid)"')
    wait_for(installed, restricted, "toy", "jsonpath={.status.restarts.counted}=1")
    for index in ("0", "1"):  # the peer, too
        script = f"until [ -e /output/worker-{index}.2 ]; do sleep 0.1; done"
        run(installed, restricted, before[index], script)
    wait_for(installed, restricted, "toy", "jsonpath={.status.attempt}=2")
    assert {i: uid_of(pod) for i, pod in pods_of(installed, restricted).items()} == {
        i: uid_of(pod) for i, pod in before.items()
    }
    story = describe(installed, restricted, "toy")
    assert re.search(r"worker 1 on node \S+ was killed \(SIGKILL", story)
    assert "restarted in place" in story
    status = finish(installed, restricted)
    assert (status["restarts"]["counted"], status["restarts"]["notCounted"]) == (1, 0)


def test_the_leading_agents_pod_is_replaced_alone(installed: NodeCluster, restricted: str) -> None:
    before = start(installed, restricted)
    installed.kubectl("delete", "pod", before["0"]["metadata"]["name"], "-n", restricted, timeout=120)
    wait_for(installed, restricted, "toy", "jsonpath={.status.attempt}=2")
    wait_for(installed, restricted, "toy", RUNNING)
    after = pods_of(installed, restricted)
    assert uid_of(after["1"]) == uid_of(before["1"])
    assert uid_of(after["0"]) != uid_of(before["0"])
    status = finish(installed, restricted)
    assert (status["restarts"]["counted"], status["restarts"]["notCounted"]) == (0, 1)


def test_what_the_agents_need_is_there_and_the_token_goes_with_the_jobs_end(
    installed: NodeCluster, restricted: str
) -> None:
    pods = start(installed, restricted)
    (volume,) = [v for v in pods["0"]["spec"]["volumes"] if v["name"] == "trainjob-bundle"]
    program, token = volume["projected"]["sources"]
    shared = installed.get("configmap", program["configMap"]["name"], namespace=restricted)
    content = base64.b64decode(shared["binaryData"]["trainjob.pyz"])
    assert shared["metadata"]["name"] == f"trainjob-agent-{hashlib.sha256(content).hexdigest()}"
    assert shared["immutable"]
    secret = installed.get("secret", token["secret"]["name"], namespace=restricted)
    assert secret["immutable"]
    assert list(secret["data"]) == ["token"]
    assert [owner["name"] for owner in secret["metadata"]["ownerReferences"]] == ["toy"]
    finish(installed, restricted)
    listed = installed.get("secrets", namespace=restricted, selector="trainjob.dev/job=toy")
    assert listed["items"] == []


def test_a_program_that_was_replaced_is_never_run(installed: NodeCluster, restricted: str) -> None:
    pods = start(installed, restricted)
    (volume,) = [v for v in pods["1"]["spec"]["volumes"] if v["name"] == "trainjob-bundle"]
    name = volume["projected"]["sources"][0]["configMap"]["name"]
    installed.delete("configmap", name, namespace=restricted)
    planted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    evil = base64.b64encode(b"print('planted')").decode()
    installed.apply({**planted, "binaryData": {"trainjob.pyz": evil}}, namespace=restricted)
    installed.kubectl("delete", "pod", pods["1"]["metadata"]["name"], "-n", restricted, timeout=120)
    wait_for(installed, restricted, "toy", "jsonpath={.status.attempt}=2")
    wait_for(installed, restricted, "toy", RUNNING)
    finish(installed, restricted)
    found = installed.get("configmap", name, namespace=restricted)
    assert found["immutable"]
    assert found["binaryData"]["trainjob.pyz"] != evil


def test_agents_are_asked_by_the_replica_at_work(installed: NodeCluster, restricted: str) -> None:
    start(installed, restricted)
    pods = installed.get(
        "pods", namespace="trainjob-system", selector="app.kubernetes.io/component=controller"
    )
    pages = [_metrics(installed, pod["metadata"]["name"]) for pod in pods["items"]]
    answered = 'trainjob_agent_calls_total{outcome="answered"} '
    asking = [page for page in pages if answered in page and f"{answered}0.0\n" not in page]
    assert [("trainjob_leader 1.0" in page) for page in asking] == [True]
    finish(installed, restricted)


def _metrics(cluster: NodeCluster, pod: str) -> str:
    look = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8080/metrics').read().decode())"
    return cluster.kubectl("exec", pod, "-n", "trainjob-system", "--", "python", "-c", look)
