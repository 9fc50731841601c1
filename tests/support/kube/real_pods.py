"""Jobs of small Python scripts, for tests with real pods: no TensorFlow, so that they start at once."""

from __future__ import annotations

import json
from typing import Any

from testbed import images
from testbed.claims import NodeCluster
from testbed.cluster import KubectlError

MINUTES = 4
"""Against hanging only."""

# Process 1 of a container ignores SIGTERM by default.
PREAMBLE = """
import json, os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
task = json.loads(os.environ["TF_CONFIG"])["task"]
role, index, attempt = task["type"], task["index"], os.environ["TRAINJOB_ATTEMPT"]
def until(name):
    while not pathlib.Path("/output", name).exists():
        time.sleep(0.1)
"""


def script_job(
    name: str,
    script: str,
    *,
    workers: int = 1,
    evaluator: bool = False,
    container: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Return a job that restricted Pod Security lets in; its replicas run the script."""
    trainer = {
        "name": "trainer",
        "image": images.operator().name,
        "command": ["python", "-u", "-c", PREAMBLE + script],
        "resources": {"requests": {"cpu": "20m", "memory": "32Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {"securityContext": security, "containers": [{**trainer, **(container or {})}]}
    return {
        "apiVersion": "trainjob.dev/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": name},
        "spec": {
            "worker": {"replicas": workers},
            "evaluator": {"replicas": int(evaluator)},
            "output": {"claim": {"claimName": "training"}},
            "template": {"spec": pod},
            **spec,
        },
    }


def wait_for(cluster: NodeCluster, namespace: str, name: str, what: str) -> dict[str, Any]:
    """Wait for what `kubectl wait --for` understands, and return the job."""
    limit = f"--timeout={MINUTES}m"
    try:
        cluster.kubectl(
            "wait", f"tj/{name}", "-n", namespace, f"--for={what}", limit, timeout=MINUTES * 60 + 10
        )
    except KubectlError as error:
        error.add_note(cluster.kubectl("describe", "tj,pods", "-n", namespace))
        error.add_note(cluster.kubectl("get", "events", "-n", namespace, "--sort-by=.lastTimestamp"))
        raise
    return cluster.get("tj", name, namespace=namespace)


def wait_for_reason(cluster: NodeCluster, namespace: str, name: str, reason: str) -> dict[str, Any]:
    """Wait until the job doesn't run for this reason; return the condition that says so."""
    field = f'jsonpath={{.status.conditions[?(@.type=="Running")].reason}}={reason}'
    job = wait_for(cluster, namespace, name, field)
    found: dict[str, Any] = condition(job, "Running")
    assert found["status"] == "False", json.dumps(job["status"], indent=1)
    return found


def condition(job: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return a condition of the job; empty if it has none of that type."""
    return next((each for each in job["status"].get("conditions", ()) if each["type"] == kind), {})


def touch(cluster: NodeCluster, namespace: str, job: str, file: str) -> None:
    """Make a file in the job's output, through one of its pods."""
    selector = f"trainjob.dev/job={job},trainjob.dev/live=true"
    pods = cluster.get("pods", namespace=namespace, selector=selector, field_selector="status.phase=Running")
    name = pods["items"][0]["metadata"]["name"]
    cluster.kubectl("exec", name, "-n", namespace, "--", "touch", f"/output/{file}")


def describe(cluster: NodeCluster, namespace: str, name: str) -> str:
    """What `kubectl describe` says, each run of spaces as one."""
    return " ".join(cluster.kubectl("describe", f"tj/{name}", "-n", namespace).split())
