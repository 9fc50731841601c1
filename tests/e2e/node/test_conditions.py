"""What the cluster refuses a job or lets it wait for: a condition with the reason, and patience."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import pytest
from testbed.claims import NodeCluster
from testbed.waiting import until

from support.cli.program import trainjob
from support.kube.real_pods import condition, describe, script_job, touch, wait_for, wait_for_reason
from trainjob.core.policies.success_policy import NO_STEPS

SYSTEM = "trainjob-system"
DONE = 'print("done")'
WAIT = 'until("go")'
# The kubelet waits for ever for a second volume of a claim.
USE_BOTH = """
mine = f"{role}-{index}"
for folder in ("/scans", "/cache"):
    pathlib.Path(folder, mine).write_text(mine)
assert pathlib.Path("/data/scans", mine).read_text() == mine, "the output's claim"
assert pathlib.Path("/images", mine).read_text() == mine, "the other claim"
for folder in ("/data", "/images"):
    try:
        pathlib.Path(folder, mine).write_text("")
    except OSError as refused:
        assert refused.errno == 30, refused
    else:
        raise AssertionError(f"{folder} can be written")
if role == "worker":
    pathlib.Path("/output", mine).write_text(mine)
"""
# Nobody gives a training process a token, and without one the API server tells it nothing.
LOOK_FOR_SECRETS = """
import ssl, urllib.error, urllib.request
account = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount")
assert not account.exists(), "a service account's token"
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
for path in ("/api/v1/secrets", "/api/v1/namespaces/{namespace}/secrets"):
    try:
        urllib.request.urlopen("https://kubernetes.default.svc" + path, context=context, timeout=20)
    except urllib.error.HTTPError as refused:
        assert refused.code in (401, 403), refused
    else:
        raise AssertionError("Secrets can be listed")
"""


def told(
    cluster: NodeCluster, namespace: str, name: str, reason: str, words: list[str], tmp_path: Any
) -> None:
    """The reason and the words are in the condition, and wherever people look."""
    found = wait_for_reason(cluster, namespace, name, reason)
    assert [word for word in words if word not in found["message"]] == [], found
    wide = cluster.kubectl("get", "tj", name, "-n", namespace, "-o", "wide").splitlines()[1]
    assert wide.split()[1] == "Pending"
    shown = trainjob("get", name, "-n", namespace, cwd=tmp_path, env=cluster.env)
    assert shown.returncode == 0, shown.stderr
    places = {"get -o wide": wide, "describe": describe(cluster, namespace, name), "trainjob": shown.stdout}
    for place, text in places.items():
        assert [word for word in words if word not in text] == [], f"{place}: {text}"
    assert f"Reason: {reason}" in places["describe"]
    assert f" {reason} " in shown.stdout


@pytest.mark.parametrize(
    ("name", "container", "reason", "words"),
    [
        (
            "no-image",
            {"image": "registry.invalid/nothing:1"},
            "ImagePullBackOff",
            ["worker 0 can't start", "registry.invalid/nothing:1"],
        ),
        (
            "no-gpu",
            {"resources": {"limits": {"nvidia.com/gpu": "1"}}},
            "Unschedulable",
            ["worker 0 can't start", "Insufficient nvidia.com/gpu"],
        ),
    ],
)
def test_a_pod_that_can_not_start(
    name: str,
    container: dict[str, Any],
    reason: str,
    words: list[str],
    installed: NodeCluster,
    restricted_module: str,
    tmp_path: Any,
) -> None:
    job = script_job(name, DONE, container=container)
    installed.apply(job, namespace=restricted_module)
    told(installed, restricted_module, name, reason, words, tmp_path)
    installed.delete("tj", name, namespace=restricted_module)


def test_a_quota_that_refuses_a_pod_is_reported_until_it_is_lifted(
    installed: NodeCluster, restricted: str, tmp_path: Any
) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "two"}}
    installed.apply({**quota, "spec": {"hard": {"pods": "2"}}}, namespace=restricted)
    full = "--for=jsonpath={.status.hard.pods}=2"
    installed.kubectl("wait", "resourcequota/two", "-n", restricted, full, "--timeout=60s", timeout=70)
    before, began = refused_pods(installed), time.monotonic()
    installed.apply(script_job("many", WAIT, workers=4), namespace=restricted)
    told(
        installed,
        restricted,
        "many",
        "CreationRefused",
        ["the cluster refuses Pod many-worker-", "exceeded quota"],
        tmp_path,
    )

    def asked_again() -> bool:
        return refused_pods(installed) >= before + 6

    until(asked_again, what="the pods are asked for again", seconds=180, every=0.5)
    # Two at the first attempt, and with each of those after it, 5 s and more apart.
    assert refused_pods(installed) - before <= 4 + 2 * (time.monotonic() - began) / 5
    installed.delete("resourcequota", "two", namespace=restricted)
    wait_for(installed, restricted, "many", "condition=Running")
    touch(installed, restricted, "many", "go")
    job = wait_for(installed, restricted, "many", "condition=Complete")
    assert job["status"]["restarts"]["counted"] == 0


def test_a_service_in_the_way_is_reported_until_it_is_gone(
    installed: NodeCluster, restricted: str, tmp_path: Any
) -> None:
    spec = {"clusterIP": "None", "selector": {"app": "other"}}
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}
    installed.apply(theirs, namespace=restricted)
    installed.apply(script_job("web", DONE), namespace=restricted)
    words = ["Service web exists and doesn't belong to this job", "rename the job, or delete that object"]
    told(installed, restricted, "web", "ServiceConflict", words, tmp_path)
    assert installed.get("service", "web", namespace=restricted)["spec"]["selector"] == {"app": "other"}
    # What was started before that was known is deleted; kubelets take their time.

    def pods() -> list[dict[str, Any]]:
        return list(installed.get("pods", namespace=restricted)["items"])

    assert all("deletionTimestamp" in pod["metadata"] for pod in pods())
    until(lambda: not pods(), what="no pod", seconds=60, every=0.5)
    installed.delete("service", "web", namespace=restricted)
    job = wait_for(installed, restricted, "web", "condition=Complete")
    assert condition(job, "Running")["reason"] == "Finished"


def test_one_claim_for_data_and_output(installed: NodeCluster, restricted: str) -> None:
    installed.claim(restricted, "images")
    mounts = [
        {"name": "data", "mountPath": "/data"},
        {"name": "scans", "mountPath": "/scans", "subPath": "scans"},
        {"name": "images", "mountPath": "/images", "readOnly": True},
        {"name": "cache", "mountPath": "/cache"},
    ]
    job = script_job("share", USE_BOTH, workers=2, evaluator=True, container={"volumeMounts": mounts})
    job["spec"]["template"]["spec"]["volumes"] = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "training", "readOnly": True}},
        {"name": "scans", "persistentVolumeClaim": {"claimName": "training"}},
        {"name": "images", "persistentVolumeClaim": {"claimName": "images", "readOnly": True}},
        {"name": "cache", "persistentVolumeClaim": {"claimName": "images"}},
    ]
    job["spec"]["maxRestarts"] = 0
    installed.apply(job, namespace=restricted)
    job = wait_for(installed, restricted, "share", "jsonpath={.status.completionTime}")
    assert job["status"]["state"] == "Complete", job["status"]["message"]


def test_training_pods_can_not_read_secrets(installed: NodeCluster, restricted: str) -> None:
    script = LOOK_FOR_SECRETS.replace("{namespace}", restricted)
    installed.apply(script_job("curious", script, evaluator=True, maxRestarts=0), namespace=restricted)
    job = wait_for(installed, restricted, "curious", "jsonpath={.status.completionTime}")
    assert job["status"]["state"] == "Complete", job["status"]["message"]
    assert job["status"]["message"] == f"training has finished, but {NO_STEPS}", (
        "the evaluator has found nothing either"
    )


@pytest.mark.parametrize("namespace", [SYSTEM, "kube-system", "default"])
@pytest.mark.parametrize("verb", ["get", "list", "watch"])
def test_the_controllers_account_can_not_read_secrets(
    installed: NodeCluster, verb: str, namespace: str
) -> None:
    deployment = installed.get("deployment", "trainjob", namespace=SYSTEM)
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{SYSTEM}:{account}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{SYSTEM}", "system:authenticated"],
            "resourceAttributes": {"verb": verb, "resource": "secrets", "namespace": namespace},
        },
    }
    answer = installed.kubectl(
        "create", "-f", "-", "-o", "jsonpath={.status.allowed}", stdin=json.dumps(review)
    )
    assert answer == "false"


def refused_pods(cluster: NodeCluster) -> int:
    """How many pods the API server has refused to the controllers so far, by their own count."""
    pods = cluster.get("pods", namespace=SYSTEM, selector="app.kubernetes.io/component=controller")["items"]
    count = 0.0
    for pod in pods:
        path = f"/api/v1/namespaces/{SYSTEM}/pods/{pod['metadata']['name']}:8080/proxy/metrics"
        for line in cluster.kubectl("get", "--raw", path).splitlines():
            if re.match(r'trainjob_api_requests_total\{(?=.*code="403")(?=.*resource="pods")', line):
                count += float(line.split()[-1])
    return int(count)


def test_of_two_jobs_that_are_half_placed_each_makes_room(installed: NodeCluster, restricted: str) -> None:
    """One has the only node for chiefs, the other the only one for workers."""
    name = next(
        node["metadata"]["name"]
        for node in installed.get("nodes")["items"]
        if not node["spec"].get("taints")  # a control plane of kind
    )
    one_each = {"status": {"capacity": {"example.com/chief": "1", "example.com/worker": "1"}}}
    installed.kubectl(
        "patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(one_each)
    )

    def half(job: str, **worker: Any) -> dict[str, Any]:
        roles = {
            "chief": {"resources": {"limits": {"example.com/chief": "1"}}},
            "worker": {"replicas": 1, "resources": {"limits": {"example.com/worker": "1"}}, **worker},
        }
        return script_job(job, DONE, startTimeoutSeconds=20, **roles)

    def runs(job: str, role: str) -> bool:
        selector = f"trainjob.dev/job={job},trainjob.dev/role={role}"
        pods = installed.get("pods", namespace=restricted, selector=selector)["items"]
        return any(pod["status"]["phase"] == "Running" for pod in pods)

    installed.apply(half("first", nodeSelector={"example.com/half": "yes"}), namespace=restricted)
    until(lambda: runs("first", "chief"), what="the first one's chief", seconds=180, every=0.2)
    installed.apply(half("second"), namespace=restricted)
    until(
        lambda: runs("second", "worker") and runs("first", "chief"),
        what="both hold what the other needs",
        seconds=180,
        every=0.2,
    )
    installed.kubectl("label", "node", name, "example.com/half=yes", "--overwrite")
    jobs = [wait_for(installed, restricted, job, "condition=Complete") for job in ("first", "second")]
    assert sum(job["status"]["restarts"]["notCounted"] for job in jobs) >= 1
    assert {job["status"]["restarts"]["counted"] for job in jobs} == {0}
