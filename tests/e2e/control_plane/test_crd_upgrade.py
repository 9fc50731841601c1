"""Jobs that exist when the CRD changes: they stay as they are, and can be managed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbed import Cluster, KubectlError

from support.kube.chart import ROOT
from support.kube.helm import CRD, own_plane, run_installation
from support.kube.kube_cluster import running
from support.kube.real_kube import eventually, open_admin, open_real, states
from support.world.changes import change_job
from support.world.jobs import build_job
from support.world.mutations import FULL
from trainjob.api import InvalidTrainJob, parse
from trainjob.cluster.kube.config import from_kubeconfig
from trainjob.cluster.kube.resources import TRAINJOBS
from trainjob.controller import Controller
from trainjob.core.manifests import build_pod

Manifest = dict[str, Any]

COMMITTED = ROOT / "manifests/crd/crd.yaml"
VERSION = "trainjob.dev/version"


@pytest.fixture(scope="module")
def plane() -> Iterator[Cluster]:
    with own_plane("tests-crd-upgrade") as cluster:
        yield cluster


@pytest.fixture
def cluster(plane: Cluster) -> Iterator[Cluster]:
    yield plane
    plane.delete("crd", CRD)


def install(cluster: Cluster, crd: Manifest, folder: Path) -> str:
    file = folder / "crd.yaml"
    file.write_text(yaml.safe_dump(crd))
    done = run_installation("--kubeconfig", cluster.kubeconfig, "crd", file)
    assert done.returncode == 0, done.stderr
    return done.stdout


def committed(version: str | None = None) -> Manifest:
    crd: Manifest = yaml.safe_load(COMMITTED.read_text())
    if version:
        crd["metadata"]["annotations"][VERSION] = version
    return crd


def newer() -> Manifest:
    """One more field with a default, and a rule that no job of today keeps."""
    crd = committed("99.0.0")
    spec = schema_of(crd)["properties"]["spec"]
    spec["properties"]["added"] = {"type": "string", "default": "new"}
    spec["properties"]["stallTimeoutSeconds"] |= {"maximum": 1}
    return crd


def older() -> Manifest:
    """Without rules, and without one field."""
    crd = committed("0.0.1")
    remove_rules(schema_of(crd))
    del schema_of(crd)["properties"]["spec"]["properties"]["stallTimeoutSeconds"]
    return crd


def schema_of(crd: Manifest) -> Manifest:
    schema: Manifest = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def remove_rules(schema: Any) -> None:
    if isinstance(schema, list):
        for item in schema:
            remove_rules(item)
    elif isinstance(schema, dict):
        schema.pop("x-kubernetes-validations", None)
        for value in schema.values():
            remove_rules(value)


def stored(cluster: Cluster, name: str = "digits") -> Manifest:
    return cluster.get("trainjobs.trainjob.dev", name, namespace="default")


def write_status(cluster: Cluster, name: str = "digits", **status: Any) -> None:
    patch = json.dumps({"status": status})
    cluster.kubectl("patch", "tj", name, "--subresource=status", "--type=merge", "-p", patch)


def test_a_newer_crd_and_then_an_older_one(cluster: Cluster, tmp_path: Path) -> None:
    install(cluster, committed(), tmp_path)
    cluster.apply(FULL)
    write_status(cluster, state="Running", attempt=2)
    before = stored(cluster)

    assert "to 99.0.0" in install(cluster, newer(), tmp_path)
    between = stored(cluster)
    assert between == {**before, "spec": {**before["spec"], "added": "new"}}
    # What the new rules would refuse is let alone where it stays as it is.
    write_status(cluster, message="going on")
    assert stored(cluster)["status"] == {**before["status"], "message": "going on"}
    cluster.kubectl("scale", "tj/digits", "--replicas=3")
    with pytest.raises(KubectlError, match="less than or equal to 1"):
        cluster.apply(change_job({"metadata.name": "other"}, FULL))

    assert "left" in install(cluster, committed(), tmp_path)
    after = stored(cluster)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    worker = {**before["spec"]["worker"], "replicas": 3}
    assert after["spec"] == {**before["spec"], "added": "new", "worker": worker}


BAD = {
    "reserved": {"spec.worker.env": [{"name": "TF_CONFIG", "value": "{}"}]},
    "nameless": {"spec.worker.env": [{"value": "1"}]},
    "hosted": {"spec.template.spec.hostNetwork": True},
    "two-places": {"spec.output.nfs": {"server": "files", "path": "/a"}},
}
"""What an API server of an older release has let in."""


async def test_jobs_of_an_older_crd(cluster: Cluster, tmp_path: Path) -> None:
    """Good ones go on, and bad ones fail with words, though their like is refused from now on."""
    lenient = older()
    for role in ("worker", "chief", "ps", "evaluator"):
        items = schema_of(lenient)["properties"]["spec"]["properties"][role]["properties"]["env"]["items"]
        del items["required"]
    install(cluster, lenient, tmp_path)
    jobs = {
        "good": build_job(name="good"),
        **{n: change_job({**c, "metadata.name": n}) for n, c in BAD.items()},
    }
    for job in jobs.values():
        cluster.apply(job)
    before = {name: stored(cluster, name) for name in jobs}
    assert "from version 0.0.1" in install(cluster, committed(), tmp_path)
    access = from_kubeconfig(cluster.kubeconfig)
    async with open_admin(cluster) as admin, open_real(access, "default") as kube:
        expected = {**dict.fromkeys(BAD, "Failed"), "good": "Pending"}
        async with running(Controller(kube).run()):
            await eventually(lambda: states(admin, "default"), lambda found: found == expected, guard=40)
    for name, job in before.items():
        after = stored(cluster, name)
        assert after["spec"] == job["spec"]
        if name != "good":
            with pytest.raises(InvalidTrainJob) as refused:
                parse(deepcopy(job))
            assert after["status"]["message"] == "; ".join(map(str, refused.value.errors))
            with pytest.raises(KubectlError):
                cluster.apply(change_job({"metadata.name": "again"}, jobs[name]))


def before_agents() -> Manifest:
    """As it was before training restarted in place: nobody needed a command."""
    crd = older()
    del schema_of(crd)["properties"]["spec"]["properties"]["restartStrategy"]
    return crd


async def test_a_running_job_that_now_needs_a_command_reports_it_and_keeps_its_pods(
    cluster: Cluster, tmp_path: Path
) -> None:
    install(cluster, before_agents(), tmp_path)
    job = build_job(name="plain", workers=1, evaluator=False)
    del job["spec"]["template"]["spec"]["containers"][0]["command"]
    cluster.apply(job)
    running_since = {"state": "Running", "startTime": "2026-01-02T03:04:05Z", "attempt": 1}
    write_status(cluster, "plain", **running_since)
    before = stored(cluster, "plain")
    was = parse(change_job({"spec.restartStrategy": "Recreate"}, before))
    pod = build_pod(was, role="worker", index=0, incarnation=1, attempt=1)
    cluster.apply(pod)
    install(cluster, committed(), tmp_path)
    access = from_kubeconfig(cluster.kubeconfig)
    async with open_admin(cluster) as admin, open_real(access, "default") as kube:

        async def message_of() -> str:
            jobs = (await admin.list(TRAINJOBS, "default"))["items"]
            return next((str(j["status"].get("message", "")) for j in jobs), "")

        async with running(Controller(kube).run()):
            await eventually(message_of, lambda message: message, guard=40)
    after = stored(cluster, "plain")
    field, _, rest = after["status"]["message"].partition(": ")
    assert field == "spec.template.spec.containers[0].command"
    assert "needs a command" in rest
    assert rest.endswith("correct the spec, delete the job and create it again")
    assert after["status"]["state"] == "Running"
    assert after["spec"]["restartStrategy"] == "InPlace"
    (left,) = cluster.get("pods", namespace="default", selector="trainjob.dev/job=plain")["items"]
    assert (left["metadata"]["name"], left["metadata"].get("deletionTimestamp")) == (
        pod["metadata"]["name"],
        None,
    )


async def test_a_started_job_with_more_replicas_than_a_new_one_may_have_continues(
    cluster: Cluster, tmp_path: Path
) -> None:
    install(cluster, older(), tmp_path)
    large = {
        "spec.worker.replicas": 600,
        "spec.chief": {},
        "spec.ps": {"replicas": 600},
        "spec.suspend": True,
    }
    for name in ("begun", "waiting"):
        cluster.apply(change_job({**large, "metadata.name": name}))
    write_status(cluster, "begun", state="Running", startTime="2026-01-02T03:04:05Z", attempt=1)
    install(cluster, committed(), tmp_path)
    access = from_kubeconfig(cluster.kubeconfig)
    async with open_admin(cluster) as admin, open_real(access, "default") as kube:
        expected = {"begun": "Suspended", "waiting": "Failed"}
        async with running(Controller(kube).run()):
            await eventually(lambda: states(admin, "default"), lambda found: found == expected, guard=40)
    said = "worker, chief and ps may have 1000 replicas together; ask for fewer"
    assert stored(cluster, "waiting")["status"]["message"] == f"spec.worker.replicas: {said}; got 1201"
    with pytest.raises(KubectlError, match=rf"spec\.worker\.replicas: .*{said}"):
        cluster.kubectl("scale", "tj/begun", "--replicas=601")
    cluster.kubectl("scale", "tj/begun", "--replicas=599")
    cluster.kubectl("scale", "tj/begun", "--replicas=300")
    with pytest.raises(KubectlError, match=rf"spec\.worker\.replicas: .*{said}"):
        cluster.kubectl("scale", "tj/begun", "--replicas=599")
    with pytest.raises(KubectlError, match=rf"spec\.worker\.replicas: .*{said}"):
        cluster.apply(change_job({**large, "metadata.name": "new"}))
