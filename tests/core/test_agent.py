"""What a pod becomes so that training restarts in place."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from support_jobs import build_job

from trainjob.api import parse
from trainjob.core.agent import build_bundle_secret, wrapped_command
from trainjob.core.render import build_pod
from trainjob.core.settings import Bundle
from trainjob.core.token import job_token


def pod_of(role: str = "worker", incarnation: int = 1, **job: Any) -> dict[str, Any]:
    parsed = parse(build_job(uid="some-uid", **job))
    return build_pod(parsed, role=role, index=0, incarnation=incarnation, attempt=incarnation)


def trainer_of(pod: dict[str, Any]) -> dict[str, Any]:
    return next(c for c in pod["spec"]["containers"] if c["name"] == "trainer")


def agent_of(pod: dict[str, Any]) -> dict[str, Any]:
    env = {v["name"]: v.get("value", "") for v in trainer_of(pod)["env"]}
    place: dict[str, Any] = json.loads(env["TRAINJOB_AGENT"])
    return place


@pytest.mark.parametrize(
    ("command", "interpreter"),
    [
        (["python", "train.py"], "python"),
        (["/opt/conda/bin/python3.10", "train.py"], "/opt/conda/bin/python3.10"),
        (["sh", "-c", "python train.py"], "python3"),
        (["./train"], "python3"),
        (["ipython", "train.py"], "python3"),
    ],
)
def test_the_users_own_interpreter_runs_the_agent_where_there_is_one(
    command: list[str], interpreter: str
) -> None:
    program = "/run/trainjob/bundle/trainjob.pyz"
    assert wrapped_command(command) == [interpreter, "-I", "-S", program, "--", *command]


def test_arguments_stay_arguments() -> None:
    pod = pod_of(container={"command": ["python"], "args": ["train.py", "--epochs=3"]})
    assert trainer_of(pod)["command"][-2:] == ["--", "python"]
    assert trainer_of(pod)["args"] == ["train.py", "--epochs=3"]


@pytest.mark.parametrize("role", ["worker", "evaluator"])
def test_an_agent_knows_its_place(role: str) -> None:
    place = agent_of(pod_of(role, incarnation=3, maxRestarts=5, stallTimeoutSeconds=60))
    assert place["seat"] == f"{role}-0"
    assert place["incarnation"] == 3
    assert place["address"] == f"digits-{role}-0.digits.default.svc:2223"
    assert place["leader"] == "digits-worker-0.digits.default.svc:2223"
    assert (place["maxRestarts"], place["stallTimeoutSeconds"], place["graceSeconds"]) == (5, 60, 30)
    assert place["ledger"]["attempt"] == 0


def test_the_chief_leads_where_there_is_one() -> None:
    assert agent_of(pod_of(chief={}))["leader"] == "digits-chief-0.digits.default.svc:2223"


def test_a_new_pods_agent_knows_what_the_job_has_spent() -> None:
    job = parse(build_job(uid="some-uid"))
    restarts = job.status.restarts.model_copy(update={"charged": 2, "uncharged": 4, "furthest_step": 70})
    status = job.status.model_copy(update={"attempt": 7, "restarts": restarts})
    later = job.model_copy(update={"status": status})
    ledger = agent_of(build_pod(later, role="worker", index=0, incarnation=7, attempt=7))["ledger"]
    assert (ledger["attempt"], ledger["charged"], ledger["uncharged"]) == (6, 2, 4)
    assert ledger["furthestStep"] == 70


def test_a_pod_has_the_bundle_and_room_for_reports() -> None:
    pod = pod_of()
    volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
    secret = build_bundle_secret(parse(build_job(uid="some-uid")), Bundle(b"zip", b"key"))
    assert volumes["trainjob-bundle"]["secret"]["secretName"] == secret["metadata"]["name"]
    assert volumes["trainjob-state"]["emptyDir"]["medium"] == "Memory"
    mounts = {m["name"]: m for m in trainer_of(pod)["volumeMounts"]}
    assert mounts["trainjob-bundle"]["mountPath"] == "/run/trainjob/bundle"
    assert mounts["trainjob-bundle"]["readOnly"] is True
    assert {p["name"]: p["containerPort"] for p in trainer_of(pod)["ports"]} == {
        "tensorflow": 2222,
        "agent": 2223,
    }


def test_the_bundle_is_the_jobs_own_and_never_changes() -> None:
    secret = build_bundle_secret(parse(build_job(uid="some-uid")), Bundle(b"zip", b"key"))
    assert secret["immutable"] is True
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "some-uid"
    data = {name: base64.b64decode(value) for name, value in secret["data"].items()}
    assert data == {"trainjob.pyz": b"zip", "token": job_token(b"key", "some-uid").encode()}
    other = build_bundle_secret(parse(build_job(uid="another")), Bundle(b"zip", b"key"))
    assert other["metadata"]["name"] != secret["metadata"]["name"]
    assert other["data"]["token"] != secret["data"]["token"]


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(Bundle(b"secret", b"secret"))
