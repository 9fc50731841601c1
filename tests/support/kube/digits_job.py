"""The digits example on several nodes, with real TensorFlow: its pods, its progress and its result."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed import node_tier
from testbed.claims import Claim, NodeCluster
from testbed.nodes import JoinedNode
from testbed.waiting import until

from support.kube.real_pods import describe, wait_for

ROOT = Path(__file__).parents[3]
MINUTES = 15
"""Against hanging only."""

EPOCHS = 600
"""They take more than a minute, even on a free machine: a lost node is noticed within a quarter of one."""
RUNNING = "jsonpath={.status.state}=Running"
HOST = "kubernetes.io/hostname"
TRAINING = "^python digits.py"
"""The command line of a training process; its agent's begins in another way."""
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


@contextmanager
def nodes_for_jobs(joined: int) -> Iterator[NodeCluster]:
    """So many nodes, beside the one of the control plane and of the chart's controller."""
    made = node_tier.start(die_with_us=True, joined=joined)
    try:
        release = ("trainjob", str(ROOT / "charts" / "trainjob"), "-n", "trainjob-system")
        here = "nodeSelector.kubernetes\\.io/hostname=testbed"
        made.helm("install", *release, "--create-namespace", "--set", here, "--wait", timeout=200)
        yield made
    finally:
        node_tier.stop_own()


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
    settings = {"--epochs": str(EPOCHS), **dict(zip(options[::2], options[1::2], strict=True))}
    named = {f"TRAIN_{name[2:].replace('-', '_').upper()}": value for name, value in settings.items()}
    pod["containers"][0].setdefault("env", []).extend(
        {"name": name, "value": value} for name, value in named.items()
    )
    pod["containers"][0]["resources"]["requests"] = {"cpu": "100m", "memory": "512Mi"}
    cluster.apply({**job, "metadata": {"name": "digits"}}, namespace=claim.namespace)


def has_trained(cluster: NodeCluster, claim: Claim) -> None:
    """Wait until there is a checkpoint and the evaluator, if any, has scored one."""
    wait_for(cluster, claim.namespace, "digits", RUNNING)
    status = cluster.get("tj", "digits", namespace=claim.namespace)
    for known in ("output.checkpointStep", *(["evaluation"] if evaluates(status) else [])):
        wait_for(cluster, claim.namespace, "digits", f"jsonpath={{.status.{known}}}")


def is_training_without_a_checkpoint(cluster: NodeCluster, claim: Claim) -> None:
    """Wait until a job that saves only on request has taken steps."""
    wait_for(cluster, claim.namespace, "digits", RUNNING)
    trains_again(cluster, claim, 1)


def resumed(cluster: NodeCluster, claim: Claim) -> bool:
    """Whether the worker 0 of now has continued from a checkpoint."""
    name = live_pod(cluster, claim, "worker-0")["metadata"]["name"]
    return "resumed from step" in cluster.kubectl("logs", name, "-n", claim.namespace, "--tail=-1")


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
    assert status["restarts"]["counted"] == 0, story
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


def live_uid(cluster: NodeCluster, claim: Claim, replica: str) -> str:
    uid: str = live_pod(cluster, claim, replica)["metadata"]["uid"]
    return uid


def missing(cluster: NodeCluster, claim: Claim) -> list[str]:
    """The workers that training goes on without."""
    found: list[str] = cluster.get("tj", "digits", namespace=claim.namespace)["status"]["worker"].get(
        "unavailable", []
    )
    return found
