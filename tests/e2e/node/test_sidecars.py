"""Sidecars that never end: a pod whose training container has ended gives back what it holds."""

from __future__ import annotations

from typing import Any

import pytest
from testbed import images
from testbed.claims import NodeCluster
from testbed.waiting import until

from support.kube.real_pods import script_job, wait_for

TRAIN = """
print(f"{role} {index} is done") if role == "worker" else until("/tmp/go")
sys.exit(int(os.environ.get("CODE", "0")))
"""


def beside_a_sidecar(name: str, *, code: int = 0, **job: Any) -> dict[str, Any]:
    made = script_job(
        name, TRAIN, workers=2, container={"env": [{"name": "CODE", "value": str(code)}]}, **job
    )
    spec = made["spec"]["template"]["spec"]
    spec["terminationGracePeriodSeconds"] = 2  # the first process of a container ignores SIGTERM
    (trainer,) = spec["containers"]
    sidecar = {"name": "log-shipper", "image": images.operator().name, "command": ["sleep", "infinity"]}
    spec["containers"] = [trainer, {**sidecar, "securityContext": trainer["securityContext"]}]
    return made


def pods_of(cluster: NodeCluster, namespace: str, name: str, role: str) -> list[dict[str, Any]]:
    selector = f"trainjob.dev/job={name},trainjob.dev/role={role}"
    pods: list[dict[str, Any]] = cluster.get("pods", namespace=namespace, selector=selector)["items"]
    return pods


def wait_for_the_pods_end(cluster: NodeCluster, namespace: str, name: str, *, least: int = 2) -> None:
    """At least so many of the workers' pods end and keep their logs; none runs."""

    def all_ended() -> bool:
        pods = pods_of(cluster, namespace, name, "worker")
        return len(pods) >= least and all(pod["status"]["phase"] == "Failed" for pod in pods)

    until(all_ended, what="the workers' pods end", seconds=60, every=0.5)
    logs = ""
    kept = [
        p for p in pods_of(cluster, namespace, name, "worker") if "deletionTimestamp" not in p["metadata"]
    ]
    for pod in kept:
        assert pod["status"]["reason"] == "DeadlineExceeded"
        logs += cluster.kubectl("logs", pod["metadata"]["name"], "-n", namespace, "-c", "trainer")
    assert sum(f"worker {index} is done" in logs for index in (0, 1)) >= least


def test_workers_end_beside_an_evaluator_and_the_evaluator_with_the_job(
    installed: NodeCluster, restricted: str
) -> None:
    installed.apply(beside_a_sidecar("done", evaluator=True), namespace=restricted)
    wait_for(installed, restricted, "done", "jsonpath={.status.state}=Evaluating")
    wait_for_the_pods_end(installed, restricted, "done")
    (evaluator,) = pods_of(installed, restricted, "done", "evaluator")
    name = evaluator["metadata"]["name"]
    installed.kubectl("wait", "pod", name, "-n", restricted, "--for=condition=Ready", "--timeout=60s")
    installed.kubectl("exec", name, "-n", restricted, "-c", "trainer", "--", "touch", "/tmp/go")
    job = wait_for(installed, restricted, "done", "condition=Complete")

    def none_runs() -> bool:
        running = installed.get("pods", namespace=restricted, field_selector="status.phase=Running")
        return not running["items"]

    until(none_runs, what="the evaluator's pod ends", seconds=60, every=0.5)
    assert installed.get("tj", "done", namespace=restricted)["status"] == job["status"]


@pytest.mark.parametrize("strategy", ["InPlace", "Recreate"])
def test_the_pods_of_a_failed_job_end(installed: NodeCluster, restricted: str, strategy: str) -> None:
    job = beside_a_sidecar("broken", code=3, maxRestarts=0, restartStrategy=strategy)
    installed.apply(job, namespace=restricted)
    status = wait_for(installed, restricted, "broken", "condition=Failed")["status"]
    assert "exit code 3" in status["message"]
    wait_for_the_pods_end(installed, restricted, "broken", least=1)  # the other may have been deleted


def test_a_native_sidecar_is_left_to_the_kubelet(installed: NodeCluster, restricted: str) -> None:
    job = beside_a_sidecar("native")
    spec = job["spec"]["template"]["spec"]
    trainer, sidecar = spec["containers"]
    spec |= {"containers": [trainer], "initContainers": [{**sidecar, "restartPolicy": "Always"}]}
    installed.apply(job, namespace=restricted)
    wait_for(installed, restricted, "native", "condition=Complete")

    def all_succeeded() -> bool:
        pods = pods_of(installed, restricted, "native", "worker")
        return len(pods) == 2 and all(pod["status"]["phase"] == "Succeeded" for pod in pods)

    until(all_succeeded, what="the workers' pods end", seconds=60, every=0.5)
    for pod in pods_of(installed, restricted, "native", "worker"):
        assert "activeDeadlineSeconds" not in pod["spec"]
