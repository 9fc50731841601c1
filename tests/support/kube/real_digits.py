"""The digits example on real pods, for tests that disturb it and compare what it has trained."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from testbed.claims import Claim, NodeCluster

from support.kube.real_pods import describe, wait_for

ROOT = Path(__file__).parents[3]
MINUTES = 15
"""Against hanging only."""

EPOCHS = 600
"""They take more than a minute, even on a free machine: a lost node is noticed within a quarter of one."""

RUNNING = "jsonpath={.status.state}=Running"
HOST = "kubernetes.io/hostname"
EQUAL = 1e-6
"""The aim of benchmarks/chaos.py, too."""

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


def start(
    cluster: NodeCluster, claim: Claim, *options: str, labels: dict[str, str] | None = None, **spec: Any
) -> None:
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
    cluster.apply({**job, "metadata": {"name": "digits", "labels": labels or {}}}, namespace=claim.namespace)


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
