"""A job whose output is in a bucket: no claim, no volume that its pods share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import pytest
import yaml
from testbed import images
from testbed.claims import NodeCluster
from testbed.programs import program
from testbed.waiting import until

from support.cli.program import trainjob
from support.kube.real_pods import describe, wait_for
from trainjob import Job

pytestmark = pytest.mark.nightly

EXAMPLE = Path(__file__).parents[3] / "examples" / "digits.yaml"
SECRET = "a-long-secret"  # noqa: S105 - of a store that ends with the test
SERVE = """
import os, pathlib, time
while not pathlib.Path("/tmp/here").exists():
    time.sleep(0.2)
os.makedirs("/tmp/buckets/results")
os.execv("/tmp/versitygw", ["versitygw", "--port", ":7070", "posix", "/tmp/buckets"])
"""


@pytest.fixture(scope="module")
def namespace(installed: NodeCluster) -> Any:
    """A namespace without a claim, with an S3 server and a Secret for it."""
    name = installed.create_namespace(labels={"pod-security.kubernetes.io/enforce": "restricted"})
    labels = {"app": "store"}
    container = {
        "name": "store",
        "image": images.operator().name,
        "command": ["python", "-c", SERVE],
        "env": [{"name": "ROOT_ACCESS_KEY", "value": "key"}, {"name": "ROOT_SECRET_KEY", "value": SECRET}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}
    pod = {"metadata": {"name": "store", "labels": labels}}
    pod |= {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {"securityContext": security, "containers": [container]},
    }
    service = {"selector": labels, "ports": [{"port": 7070}]}
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
    keys["AWS_ENDPOINT_URL"] = "http://store:7070"
    secret = {"metadata": {"name": "bucket-key"}, "stringData": keys}
    installed.apply(pod, namespace=name)
    installed.apply(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "store"}, "spec": service},
        namespace=name,
    )
    installed.apply({"apiVersion": "v1", "kind": "Secret", **secret}, namespace=name)
    installed.kubectl("wait", "pod/store", "-n", name, "--for=condition=Ready", "--timeout=60s", timeout=70)
    installed.kubectl("cp", str(program("versitygw")), f"{name}/store:/tmp/versitygw", timeout=120)
    installed.kubectl("exec", "store", "-n", name, "--", "touch", "/tmp/here")
    yield name
    installed.delete_namespace(name)


def digits(name: str, bucket: str = "results", epochs: int = 25) -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    job["metadata"]["name"] = name
    job["spec"]["output"] = {"uri": f"s3://{bucket}/team", "credentials": {"secretName": "bucket-key"}}
    (container,) = job["spec"]["template"]["spec"]["containers"]
    container["env"] = [{"name": "TRAIN_EPOCHS", "value": str(epochs)}]
    return job


def ended(cluster: NodeCluster, namespace: str, name: str) -> dict[str, Any]:
    status: dict[str, Any] = wait_for(cluster, namespace, name, "jsonpath={.status.completionTime}")["status"]
    return status


def test_a_job_without_a_claim_survives_its_writer_and_its_results_are_read(
    installed: NodeCluster, namespace: str, tmp_path: Path
) -> None:
    def run(*words: str) -> str:
        name, *rest = words
        done = trainjob(name, "-n", namespace, *rest, cwd=tmp_path, env=installed.env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def has_saved() -> bool:
        status = installed.get("tj", "digits", namespace=namespace).get("status", {})
        return bool(status.get("output", {}).get("checkpointStep"))

    installed.apply(digits("digits", epochs=100), namespace=namespace)
    until(has_saved, what="a checkpoint in the bucket", seconds=240, every=0.2)
    selector = "trainjob.dev/job=digits,trainjob.dev/role=worker,trainjob.dev/index=0"
    now = ("--grace-period=0", "--force", "--wait=false")
    installed.kubectl("delete", "pods", "-l", selector, "-n", namespace, *now)
    status = ended(installed, namespace, "digits")
    story = describe(installed, namespace, "digits")
    assert status["state"] == "Complete", story
    assert status["attempt"] > 1, story
    assert "from step 0" not in story
    assert status["evaluation"]["step"] == status["progress"]["step"]
    assert installed.get("pvc", namespace=namespace)["items"] == []
    assert SECRET not in story + json.dumps(status) + run("logs", "digits")

    job = Job.attach("digits", namespace=namespace, kubeconfig=str(installed.kubeconfig))
    keras.models.load_model(job.model(tmp_path / "model") / "model.keras")
    scored = {row["step"]: row["val_accuracy"] for row in job.history() if "val_accuracy" in row}
    accuracy = float(status["evaluation"]["metrics"]["accuracy"])
    assert accuracy > 0.97
    assert scored[status["progress"]["step"]] == pytest.approx(accuracy, abs=1e-4)
    run("cp", "digits:checkpoints", "checkpoints")
    (newest,) = sorted((tmp_path / "checkpoints").glob("step-*"))[-1:]
    assert int(newest.name.removeprefix("step-")) == status["progress"]["step"]
    assert any(file.stat().st_size for file in newest.glob("*.data-*"))
    missing = trainjob("cp", "-n", namespace, "digits:modle", "x", cwd=tmp_path, env=installed.env)
    assert "has no modle (did you mean model?)" in missing.stderr

    installed.delete("tj", "digits", namespace=namespace)
    installed.apply(digits("digits", epochs=100), namespace=namespace)
    assert "had already finished" in ended(installed, namespace, "digits")["message"]


def test_a_bucket_that_is_not_there_ends_a_job_before_training(
    installed: NodeCluster, namespace: str
) -> None:
    installed.apply(digits("lost", "elsewhere"), namespace=namespace)
    status = ended(installed, namespace, "lost")
    assert (status["state"], status["progress"].get("step", 0)) == ("Failed", 0)
    assert "s3://elsewhere/team/lost" in status["message"]
    assert "bucket does not exist" in status["message"]
