"""`trainjob doctor`: what it asks a cluster, and how it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from support.cli.requests import Answer, Asked
from support.cli.server import CliServer
from support.cli.stored_jobs import call, stored_pod
from trainjob.api import parse
from trainjob.client import doctor, doctor_cluster
from trainjob.client.doctor import BucketTrial, TensorFlow
from trainjob.client.doctor_cluster import PERMISSIONS
from trainjob.cluster.kube.config import Access
from trainjob.core.manifests import build_objects, count_gpus
from trainjob_trainer.patches import PATCHES

CRD = {"metadata": {"name": "trainjobs.trainjob.dev", "annotations": {"trainjob.dev/version": "0.1.0"}}}
DEPLOYMENT = {
    "metadata": {"namespace": "a", "name": "b", "labels": {"app.kubernetes.io/version": "0.1.0"}},
    "status": {"readyReplicas": 1},
}
CLAIM = {
    "metadata": {"name": "training"},
    "spec": {"accessModes": ["ReadWriteMany"]},
    "status": {"phase": "Bound"},
}
ANSWERS: dict[str, dict[str, Any]] = {
    "version": {"gitVersion": "v1.34.1"},
    "customresourcedefinitions": CRD,
    "deployments": {"items": [DEPLOYMENT]},
    "storageclasses": {"items": [{"metadata": {"name": "s"}, "provisioner": "rancher.io/local-path"}]},
    "persistentvolumeclaims": {"items": [CLAIM]},
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No TensorFlow is imported: tests/client/test_doctor.py has its cases."""
    found = TensorFlow(version="2.21.0", keras="3.15.1", seconds=4.2)
    monkeypatch.setattr(doctor, "look_for_tensorflow", lambda _python: found)


def serve(api: CliServer, answers: Mapping[str, dict[str, Any]] = ANSWERS, *, denied: str = "") -> None:
    def answer(asked: Asked) -> None:
        if asked.plural == "selfsubjectaccessreviews":
            attributes = (asked.body or {})["spec"]["resourceAttributes"]
            given({"status": {"allowed": f"{attributes['verb']} {attributes['resource']}" != denied}})
        if asked.plural in answers:
            given(answers[asked.plural])

    api.rules.append(answer)


def given(content: dict[str, Any]) -> None:
    response = Answer(200, "", "")
    response.status = content
    raise response


def cluster_of(*options: str) -> tuple[int, dict[str, tuple[str, str]]]:
    result = call("doctor", "-o", "json", *options)
    checks = json.loads(result.stdout)
    shown = {
        check["subject"]: (check["verdict"], check["found"])
        for check in checks
        if check["where"] == "cluster"
    }
    return result.exit_code, shown


def test_a_cluster_that_has_everything(api: CliServer) -> None:
    serve(api)
    assert cluster_of("-n", "research") == (
        0,
        {
            "cluster": ("ok", f"Kubernetes v1.34.1 at {api.url}, namespace research"),
            "CRD": ("ok", "0.1.0"),
            "controller": ("ok", "0.1.0 in a/b"),
            "permissions": ("ok", f"all of {len(PERMISSIONS)} in research"),
            "storage": ("ok", "claims for several nodes in research: training"),
        },
    )
    assert api.count("create", "pods") == 0


def test_a_problem_is_named_with_its_remedy_and_ends_with_1(api: CliServer) -> None:
    serve(api, denied="create trainjobs")
    result = call("doctor")
    assert result.exit_code == 1
    assert "  problem  permissions  you may not create trainjobs in default (for submit)\n" in result.stdout
    assert "-> ask an administrator to bind the ClusterRole `edit` to you in default\n" in result.stdout


def answer_for_crds(api: CliServer, answer: Answer) -> None:
    def rule(asked: Asked) -> None:
        if asked.plural == "customresourcedefinitions":
            raise answer

    api.rules.append(rule)
    serve(api)


def test_people_who_may_not_read_crds_see_that_trainjobs_are_known(api: CliServer) -> None:
    answer_for_crds(api, Answer(403, "Forbidden", "crds are forbidden"))
    code, shown = cluster_of()
    assert (code, shown["CRD"][0]) == (0, "note")
    assert "the API server doesn't allow it: crds are forbidden" in shown["CRD"][1]


def test_a_cluster_without_trainjobs(api: CliServer) -> None:
    answer_for_crds(api, Answer(404, "NotFound", "not found"))
    code, shown = cluster_of()
    assert (code, shown["CRD"]) == (1, ("problem", "this cluster has no trainjobs.trainjob.dev"))


def test_a_cluster_that_does_not_answer(api: CliServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Asked) -> None:
        raise Answer(503, "ServiceUnavailable", "starting")

    api.rules.append(refuse)
    code, shown = cluster_of()
    assert (code, list(shown)) == (1, ["cluster"])
    monkeypatch.setenv("KUBECONFIG", "nowhere")
    code, shown = cluster_of()
    assert (code, shown["kubeconfig"][0]) == (0, "note")
    code, shown = cluster_of("--context", "main")
    assert (code, shown["kubeconfig"][0]) == (1, "problem")


@pytest.mark.parametrize(
    ("state", "code", "found"),
    [
        (
            {"terminated": {"exitCode": 0, "message": "3.11.2 2.21.0"}},
            0,
            ("ok", "has Python 3.11.2, TensorFlow"),
        ),
        (
            {"waiting": {"reason": "ImagePullBackOff", "message": "no host"}},
            1,
            ("problem", "pulled: no host"),
        ),
        ({}, 1, ("problem", "was not pulled within 0.2 s: the pod isn't scheduled yet; see --timeout")),
    ],
)
def test_a_pod_pulls_an_image_and_is_deleted(
    state: dict[str, Any], code: int, found: tuple[str, str], api: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_cluster, "_POLL_SECONDS", 0.01)
    serve(api)

    def run(asked: Asked) -> None:
        if (asked.plural, asked.verb) == ("pods", "get"):
            pod = api.get("pods", asked.name)
            assert pod is not None
            assert pod["spec"]["containers"][0]["image"] == "acme/tf:1"
            pod["status"] = {"containerStatuses": [{"name": "trainer", "state": state}]}
            api.put(pod)

    api.rules.append(run)
    ended, shown = cluster_of("--image", "acme/tf:1", "--timeout", "0.2" if not state else "30")
    assert (ended, shown["image"][0], found[1] in shown["image"][1]) == (code, found[0], True), shown
    assert (api.count("create", "pods"), api.count("delete", "pods")) == (1, 1)


def test_people_who_may_not_create_pods_are_told(api: CliServer) -> None:
    def forbid(asked: Asked) -> None:
        if (asked.plural, asked.verb) == ("pods", "create"):
            raise Answer(403, "Forbidden", "pods is forbidden")

    api.rules.append(forbid)
    serve(api)
    code, shown = cluster_of("--image", "acme/tf:1")
    assert (code, shown["image"][0]) == (1, "problem")
    assert "no pod can be created in default: the API server doesn't allow it" in shown["image"][1]


async def test_an_interrupted_look_at_an_image_leaves_no_pod(api: CliServer) -> None:
    access = Access(server=api.url)
    look = asyncio.create_task(doctor_cluster.try_image(access, "default", "acme/tf:1", 60))
    await asyncio.to_thread(api.wait_until, lambda: api.count("get", "pods") > 0)
    look.cancel()
    with pytest.raises(asyncio.CancelledError):
        await look
    assert (api.count("create", "pods"), api.count("delete", "pods")) == (1, 1)


MEASURED = {"implementation": "NCCL", "devices": 2, "size": 1 << 28, "seconds": 0.1}


def let_a_job_measure(
    api: CliServer, monkeypatch: pytest.MonkeyPatch, *, said: str = "", message: str = "", over: bool = False
) -> None:
    """The image is there. The job's workers run, worker 0 has said this, and the job has this message."""
    monkeypatch.setattr(doctor_cluster, "_POLL_SECONDS", 0.01)
    serve(api)

    def run(asked: Asked) -> None:
        if (asked.plural, asked.verb) == ("pods", "get"):
            pod = api.get("pods", asked.name)
            assert pod is not None
            has = {"terminated": {"exitCode": 0, "message": "3.11.2 2.21.0"}}
            api.put({**pod, "status": {"containerStatuses": [{"name": "trainer", "state": has}]}})
        if (asked.plural, asked.verb) == ("trainjobs", "get"):
            job = api.get("trainjobs", asked.name)
            assert job is not None
            if (not said and not message) or job.get("status"):
                return
            status = {"message": message, **({"completionTime": "2026-01-01T00:00:00Z"} if over else {})}
            api.put({**job, "status": status})
            for index in (0, 1):
                pod = stored_pod("worker", index, job=asked.name, container={"running": {}})
                api.put({**pod, "spec": {"nodeName": f"gpu-{index}"}})
            api.write_log(f"{asked.name}-worker-0-1", "NCCL INFO", f"trainjob all-reduce: {said}")

    api.rules.append(run)


def test_a_job_of_two_workers_measures_and_is_deleted(
    api: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_a_job_measure(api, monkeypatch, said=json.dumps(MEASURED))
    code, shown = cluster_of("--image", "acme/tf:1", "--gpus", "1")
    assert (code, shown["all-reduce"]) == (
        0,
        ("ok", "NCCL on 2 devices, gpu-0 and gpu-1: 256 MiB in 100.0 ms, 2.68 GB/s"),
    )
    assert (api.count("create"), api.count("delete")) == (1, 1)


@pytest.mark.parametrize(
    ("job", "found"),
    [
        ({"said": json.dumps({**MEASURED, "implementation": "RING"})}, "RING on 2 devices"),
        (
            {"message": "worker 0 got an error from NCCL", "over": True},
            "worker 0 got an error from NCCL",
        ),
        ({"message": "worker 0 can't start: Unschedulable"}, "in 0.3 s: worker 0 can't start: Unschedulable"),
        ({"said": "[1]"}, "nothing was measured in 0.3 s"),
        ({}, "nothing was measured in 0.3 s: no controller has acted on the job"),
    ],
)
def test_what_keeps_workers_from_summing_is_a_problem(
    job: dict[str, Any], found: str, api: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_a_job_measure(api, monkeypatch, **job)
    code, shown = cluster_of("--image", "acme/tf:1", "--gpus", "1", "--timeout", "0.3")
    assert (code, shown["all-reduce"][0]) == (1, "problem")
    assert found in shown["all-reduce"][1]
    assert (api.count("create"), api.count("delete")) == (1, 1)


def test_a_namespace_without_a_claim_for_several_nodes_asks_for_an_output(
    api: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ANSWERS, "persistentvolumeclaims", {"items": []})
    let_a_job_measure(api, monkeypatch, said=json.dumps({**MEASURED, "implementation": "RING"}))
    code, shown = cluster_of("--image", "acme/tf:1", "--gpus", "0")
    assert (code, shown["all-reduce"][0]) == (1, "problem")
    assert "--job-output" in shown["all-reduce"][1]
    code, shown = cluster_of("--image", "acme/tf:1", "--gpus", "0", "--job-output", "nfs:server:/jobs")
    assert (code, shown["all-reduce"][0]) == (0, "ok")
    assert call("doctor", "--gpus", "1").exit_code == 2
    in_a_bucket = call("doctor", "--image", "acme/tf:1", "--gpus", "0", "--job-output", "s3://results")
    assert (in_a_bucket.exit_code, "needs a volume" in in_a_bucket.stderr) == (2, True)


@pytest.mark.parametrize("gpus", [0, 2])
def test_the_job_is_one_that_the_api_accepts(gpus: int) -> None:
    output = {"claim": {"claimName": "training"}}
    job = parse(doctor_cluster.build_measurement("trainjob-doctor-0a1b2c3d", "acme/tf:1", gpus, output))
    pods = [made for made in build_objects(job) if made["kind"] == "Pod"]
    assert len(pods) == 2
    assert all(count_gpus(pod) == gpus for pod in pods)


def test_a_bucket_is_tried_only_if_it_is_named(api: CliServer, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def answer(_python: object, uri: str) -> BucketTrial:
        tried.append(uri)
        return BucketTrial("replace", "accepted")

    monkeypatch.setattr(doctor, "try_bucket", answer)
    serve(api)
    assert (call("doctor").exit_code, tried) == (0, [])
    result = call("doctor", "-n", "research", "--bucket", "s3://results/digits")
    assert (result.exit_code, tried) == (1, ["s3://results/digits"])
    assert "  problem  bucket " in result.stdout


@pytest.mark.parametrize(
    "address",
    ["s3://key:secret@results/digits", "https://a.blob.core.windows.net/b?sig=secret", "s3://[secret"],
)
def test_credentials_in_an_address_are_refused_and_not_printed(address: str) -> None:
    result = call("doctor", "--bucket", address)
    assert result.exit_code == 2
    assert "secret" not in result.output


def test_what_is_replaced_in_keras_is_listed_with_what_the_installed_source_shows() -> None:
    result = call("doctor", "--patches")
    assert result.exit_code == 0
    out = result.stdout
    assert [line.partition(":")[0] for line in out.splitlines() if not line.startswith(" ")][:-1] == [
        one.name for one in PATCHES
    ]
    assert out.count("the fault is in the installed source") == sum(bool(one.fault) for one in PATCHES)
