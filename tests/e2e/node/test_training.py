"""The main path: `kubectl apply -f examples/digits.yaml` trains TensorFlow in real pods."""

from __future__ import annotations

import ast
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from testbed.claims import NodeCluster

from support.notebook import html_of, run_notebook, text_of
from trainjob_trainer.contract.curves import read_curves

EXAMPLES = Path(__file__).parents[3] / "examples"
MINUTES = 8


def until_ended(cluster: NodeCluster, namespace: str, name: str) -> dict[str, Any]:
    wait = ("wait", f"tj/{name}", "-n", namespace, "--for=jsonpath={.status.completionTime}")
    cluster.kubectl(*wait, f"--timeout={MINUTES}m", timeout=MINUTES * 60 + 10)
    return cluster.get("tj", name, namespace=namespace)


def example(cluster: NodeCluster, name: str) -> dict[str, Any]:
    """The example's job, to be changed."""
    file = EXAMPLES / f"{name.replace('-', '_')}.yaml"
    printed = cluster.kubectl("create", "-f", str(file), "--dry-run=client", "-o", "json")
    manifest: dict[str, Any] = json.loads(printed)
    return {**manifest, "metadata": {"name": name}}


def test_digits_train_and_are_scored(installed: NodeCluster, restricted: str) -> None:
    installed.apply(EXAMPLES / "digits.yaml", namespace=restricted)
    job = until_ended(installed, restricted, "digits")
    status = job["status"]
    assert status["state"] == "Complete", json.dumps(status, indent=1)
    wait = ("wait", "tj/digits", "-n", restricted, "--for=condition=Complete", "--timeout=5s")
    assert "condition met" in installed.kubectl(*wait)
    assert (
        status["progress"]["step"] == status["progress"]["totalSteps"] == status["output"]["checkpointStep"]
    )
    assert status["evaluation"]["step"] == status["progress"]["step"]
    assert float(status["evaluation"]["metrics"]["accuracy"]) > 0.97
    assert status["restarts"]["counted"] == 0
    curves = read_curves(status["curves"])
    assert len(curves["loss"]) > 1, status["curves"]
    assert max(curves["loss"]) == max(curves["val_accuracy"]) == status["progress"]["step"], status["curves"]
    _events_tell_the_story(installed, restricted)
    _pods_hold_no_token(installed, restricted)
    _a_second_look_is_a_table(installed, restricted)
    installed.delete("tj", "digits", namespace=restricted)
    for kind in ("pods", "services", "networkpolicies"):
        left = ("wait", kind, "--for=delete", "-l", "trainjob.dev/job=digits", "-n", restricted)
        installed.kubectl(*left, "--timeout=60s", timeout=70)
    assert installed.get("pvc", "training", namespace=restricted)["status"]["phase"] == "Bound"
    # As GitOps tools do after the TTL.
    installed.apply(EXAMPLES / "digits.yaml", namespace=restricted)
    again = until_ended(installed, restricted, "digits")["status"]
    assert again["state"] == "Complete", json.dumps(again, indent=1)
    assert "had already finished: the output /output/digits belongs to the same spec" in again["message"]
    assert again["evaluation"]["step"] == again["progress"]["step"] == status["progress"]["step"]
    assert read_curves(again["curves"])["loss"] == curves["loss"]
    installed.delete("tj", "digits", namespace=restricted)
    changed = example(installed, "digits")
    changed["spec"]["maxRestarts"] = 7
    installed.apply(changed, namespace=restricted)
    refused = until_ended(installed, restricted, "digits")["status"]
    assert (refused["state"], refused["firstFailure"]["exitCode"]) == ("Failed", 81)


def test_a_script_created_again_after_its_end_trains_nothing(installed: NodeCluster, restricted: str) -> None:
    manifest = example(installed, "plain-keras")
    manifest["spec"]["evaluator"] = {"replicas": 0}
    messages = []
    for _ in range(2):
        installed.apply(manifest, namespace=restricted)
        status = until_ended(installed, restricted, "plain-keras")["status"]
        assert status["state"] == "Complete", json.dumps(status, indent=1)
        messages.append(status["message"])
        installed.delete("tj", "plain-keras", namespace=restricted)
    assert "had already finished" in messages[1]
    assert "had already finished" not in messages[0]


@pytest.mark.nightly
def test_a_notebook_trains_on_the_cluster(installed: NodeCluster, restricted: str, tmp_path: Path) -> None:
    kubeconfig = shutil.copy(installed.kubeconfig, tmp_path / "kubeconfig")
    own = ("config", "set-context", "--current", f"--namespace={restricted}")
    installed.kubectl(f"--kubeconfig={kubeconfig}", *own)
    environ = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    _, submitted, figures, fetched = run_notebook("cluster", tmp_path, environ)
    shown = html_of(submitted)
    for part in ("Complete", f"in namespace {restricted}", "step 460/460", "<polyline"):
        assert part in shown
    state, metrics, *lines = text_of(figures).strip().split("\n")  # a line of a log may have others in it
    assert state == "Complete 460"
    assert ast.literal_eval(metrics)["val_accuracy"] >= 0.9
    assert {line.partition(":")[0] for line in lines} == {"worker-0", "worker-1", "evaluator-0"}
    lines = [line for line in text_of(fetched).splitlines() if line]
    result, last_row, parameters = map(ast.literal_eval, lines[-3:])
    assert result["accuracy"] >= 0.9
    assert (last_row["step"], parameters) == (460, 4810)


def _events_tell_the_story(cluster: NodeCluster, namespace: str) -> None:
    story = cluster.kubectl("describe", "tj/digits", "-n", namespace)
    events = story[story.index("Events:") :]
    assert [word for word in ("Created", "Started", "Complete") if word not in events] == []


def _pods_hold_no_token(cluster: NodeCluster, namespace: str) -> None:
    pods = cluster.get("pods", namespace=namespace, selector="trainjob.dev/job=digits")["items"]
    assert len(pods) == 3
    for pod in pods:
        mounts = [m["mountPath"] for c in pod["spec"]["containers"] for m in c["volumeMounts"]]
        assert "/output" in mounts
        assert not [m for m in mounts if "serviceaccount" in m]


def _a_second_look_is_a_table(cluster: NodeCluster, namespace: str) -> None:
    header, row = cluster.kubectl("get", "tj", "-n", namespace).splitlines()
    assert header.split()[:3] == ["NAME", "STATE", "WORKERS"]
    assert row.split()[:2] == ["digits", "Complete"]


def test_parameter_servers_and_a_worker_that_goes(installed: NodeCluster, restricted: str) -> None:
    name = "parameter-server"
    manifest = example(installed, name)
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    container["resources"]["requests"] = {"cpu": "100m", "memory": "256Mi"}  # five pods on two processors
    installed.apply(manifest, namespace=restricted)
    saved = ("wait", f"tj/{name}", "-n", restricted, "--for=jsonpath={.status.output.checkpointStep}")
    installed.kubectl(*saved, f"--timeout={MINUTES}m", timeout=MINUTES * 60 + 10)
    worker = f"trainjob.dev/job={name},trainjob.dev/role=worker,trainjob.dev/index=1"
    installed.kubectl("delete", "pod", "-l", worker, "-n", restricted, "--wait=false")
    status = until_ended(installed, restricted, name)["status"]
    assert status["state"] == "Complete", json.dumps(status, indent=1)
    assert status["progress"]["step"] == status["progress"]["totalSteps"] == status["evaluation"]["step"]
    assert float(status["evaluation"]["metrics"]["accuracy"]) > 0.93
    assert status["restarts"]["counted"] == 0
    chief = f"trainjob.dev/job={name},trainjob.dev/role=chief"
    log = installed.kubectl("logs", "-l", chief, "-n", restricted, "--tail=-1")
    assert "Epoch 20/20" in log
    assert "resumed from" not in log


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["python", "-c", "raise ValueError('boom')"], ["crashed", "exit code 1", "boom"]),
        (["python", "nowhere.py"], ["crashed", "nowhere.py"]),
    ],
)
def test_a_failing_script_is_named(
    installed: NodeCluster, restricted: str, command: list[str], words: list[str]
) -> None:
    manifest = example(installed, "digits")
    manifest["spec"]["maxRestarts"] = 0
    manifest["spec"]["template"]["spec"]["containers"][0]["command"] = command
    installed.apply(manifest, namespace=restricted)
    status = until_ended(installed, restricted, "digits")["status"]
    assert status["state"] == "Failed"
    assert [word for word in words if word not in status["message"]] == []
    assert status["firstFailure"]["exitCode"] in (1, 2)
