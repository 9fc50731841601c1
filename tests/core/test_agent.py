"""What a pod becomes so that training restarts in place."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from support.world.jobs import build_job
from trainjob.api import parse
from trainjob.core.agent import (
    AgentSource,
    agent_source,
    job_token,
    programs_in_use,
    read_source,
    secret_name,
    wrapped_command,
)
from trainjob.core.manifests import build_pod, build_program, build_token_secret
from trainjob.core.settings import Bundle

BUNDLE = Bundle(b"zip", b"key")


def pod_of(
    role: str = "worker", incarnation: int = 1, source: AgentSource | None = None, **job: Any
) -> dict[str, Any]:
    parsed = parse(build_job(uid="some-uid", **job))
    return build_pod(parsed, role=role, index=0, incarnation=incarnation, attempt=incarnation, source=source)


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


CODE = {"configMap": "trainjob-agent-of-mine", "digest": "0" * 64}


def test_the_jobs_code_is_mounted_beside_the_program_and_unpacked_in_a_volume() -> None:
    source = agent_source(parse(build_job(uid="some-uid")).metadata, BUNDLE)
    pod = pod_of(source=source, code=CODE)
    volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
    files = {"name": CODE["configMap"], "items": [{"key": "code.zip", "path": "code.zip"}]}
    assert volumes["trainjob-bundle"]["projected"]["sources"][2:] == [{"configMap": files}]
    assert volumes["trainjob-code"] == {"name": "trainjob-code", "emptyDir": {"sizeLimit": "1Gi"}}
    assert {"name": "trainjob-code", "mountPath": "/run/trainjob/code"} in trainer_of(pod)["volumeMounts"]
    assert trainer_of(pod)["workingDir"] == "/run/trainjob/code"
    assert agent_of(pod)["code"] == {"digest": CODE["digest"], "folder": "/run/trainjob/code"}
    # Its ConfigMap is none of a program, whatever its name is.
    assert read_source(pod["spec"]) == AgentSource(source.secret, source.digest)


def test_a_working_directory_that_is_named_stays() -> None:
    assert trainer_of(pod_of(code=CODE, container={"workingDir": "/app"}))["workingDir"] == "/app"
    assert "workingDir" not in trainer_of(pod_of())


def test_arguments_stay_arguments() -> None:
    pod = pod_of(container={"command": ["python"], "args": ["train.py", "--epochs=3"]})
    assert trainer_of(pod)["command"][-2:] == ["--", "python"]
    assert trainer_of(pod)["args"] == ["train.py", "--epochs=3"]


@pytest.mark.parametrize("role", ["worker", "evaluator"])
def test_an_agent_knows_its_replica(role: str) -> None:
    place = agent_of(pod_of(role, incarnation=3, maxRestarts=5, stallTimeoutSeconds=60))
    assert place["replica"] == f"{role}-0"
    assert place["incarnation"] == 3
    assert place["address"] == f"digits-{role}-0.digits.default.svc:2223"
    assert place["leader"] == "digits-worker-0.digits.default.svc:2223"
    assert (place["maxRestarts"], place["stallTimeoutSeconds"], place["graceSeconds"]) == (5, 60, 30)
    assert place["restarts"]["attempt"] == 0


def test_the_chief_leads_where_there_is_one() -> None:
    assert agent_of(pod_of(chief={}))["leader"] == "digits-chief-0.digits.default.svc:2223"


def test_a_new_pods_agent_knows_what_the_job_has_spent() -> None:
    job = parse(build_job(uid="some-uid"))
    restarts = job.status.restarts.model_copy(update={"counted": 2, "not_counted": 4, "furthest_step": 70})
    status = job.status.model_copy(update={"attempt": 7, "restarts": restarts})
    later = job.model_copy(update={"status": status})
    counts = agent_of(build_pod(later, role="worker", index=0, incarnation=7, attempt=7))["restarts"]
    assert (counts["attempt"], counts["counted"], counts["notCounted"]) == (6, 2, 4)
    assert counts["furthestStep"] == 70


def test_a_pod_has_program_token_and_room_for_reports() -> None:
    job = parse(build_job(uid="some-uid"))
    source = agent_source(job.metadata, BUNDLE)
    pod = pod_of(source=source)
    volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
    program, token = volumes["trainjob-bundle"]["projected"]["sources"]
    assert program["configMap"] == {
        "name": build_program("default", BUNDLE)["metadata"]["name"],
        "items": [{"key": "trainjob.pyz", "path": "trainjob.pyz"}],
    }
    assert token["secret"] == {
        "name": build_token_secret(job, BUNDLE)["metadata"]["name"],
        "items": [{"key": "token", "path": "token"}],
    }
    assert volumes["trainjob-state"]["emptyDir"]["medium"] == "Memory"
    mounts = {m["name"]: m for m in trainer_of(pod)["volumeMounts"]}
    assert mounts["trainjob-bundle"]["mountPath"] == "/run/trainjob/bundle"
    assert mounts["trainjob-bundle"]["readOnly"] is True
    assert {p["name"]: p["containerPort"] for p in trainer_of(pod)["ports"]} == {
        "tensorflow": 2222,
        "agent": 2223,
    }
    assert read_source(pod["spec"]) == AgentSource(source.secret, source.digest)


def test_a_pod_of_a_local_run_has_its_token_from_a_secret() -> None:
    source = AgentSource("digits-agent-12345678")
    pod = pod_of(source=source)
    (volume,) = (v for v in pod["spec"]["volumes"] if v["name"] == "trainjob-bundle")
    assert volume["secret"] == {"secretName": "digits-agent-12345678", "defaultMode": 0o444}
    assert trainer_of(pod)["command"] == wrapped_command(["python", "train.py"])
    assert "tokenDigest" not in agent_of(pod)


def test_a_pod_without_agent_has_no_source() -> None:
    assert read_source(pod_of(restartStrategy="Recreate")["spec"]) is None
    assert read_source({}) is None


def test_the_program_is_named_after_what_it_holds() -> None:
    made = build_program("training", BUNDLE)
    digest = hashlib.sha256(b"zip").hexdigest()
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == (
        f"trainjob-agent-{digest}",
        "training",
    )
    assert made["immutable"] is True
    assert {name: base64.b64decode(value) for name, value in made["binaryData"].items()} == {
        "trainjob.pyz": b"zip"
    }
    assert "ownerReferences" not in made["metadata"]
    assert Bundle(b"", b"key").digest == ""


def test_the_secret_holds_the_jobs_token_alone() -> None:
    secret = build_token_secret(parse(build_job(uid="some-uid")), BUNDLE)
    assert secret["immutable"] is True
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "some-uid"
    data = {name: base64.b64decode(value) for name, value in secret["data"].items()}
    assert data == {"token": job_token(b"key", "some-uid").encode()}
    other = build_token_secret(parse(build_job(uid="another")), BUNDLE)
    assert other["metadata"]["name"] != secret["metadata"]["name"]
    assert other["data"]["token"] != secret["data"]["token"]


def test_the_secrets_name_can_not_be_foreseen() -> None:
    meta = parse(build_job(uid="some-uid")).metadata
    names = {secret_name(meta, key) for key in (b"key", b"another key")}
    assert len(names) == 2
    # Neither the token nor a part of it.
    assert job_token(b"key", "some-uid")[:16] not in secret_name(meta, b"key")


def test_an_agent_knows_the_digest_of_its_token() -> None:
    source = agent_source(parse(build_job(uid="some-uid")).metadata, BUNDLE)
    token = job_token(b"key", "some-uid")
    assert agent_of(pod_of(source=source))["tokenDigest"] == hashlib.sha256(token.encode()).hexdigest()


RUN = """
import sys
from pathlib import Path

def main():
    print(sys.argv, __file__, sys.path[0])
    print("sys" in globals(), file=sys.stderr)
    return 7
"""


def start_checked(folder: Path, program: bytes, digest: str) -> subprocess.CompletedProcess[str]:
    """Run a pod's command with the paths of this test."""
    (folder / "bundle").mkdir()
    (folder / "state").mkdir()
    (folder / "bundle/trainjob.pyz").write_bytes(program)
    command = [
        part.replace("/run/trainjob", str(folder))
        for part in wrapped_command([sys.executable, "train.py"], digest)
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def packed(code: str) -> bytes:
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        for name in ("trainjob_trainer/__init__.py", "trainjob_trainer/agent/__init__.py"):
            archive.writestr(name, "")
        archive.writestr("trainjob_trainer/agent/main.py", code)
    return zipped.getvalue()


def test_the_program_that_the_pod_was_created_for_runs_from_a_copy(tmp_path: Path) -> None:
    program = packed(RUN)
    done = start_checked(tmp_path, program, hashlib.sha256(program).hexdigest())
    assert done.returncode == 7, done.stderr
    mounted, copy = tmp_path / "bundle/trainjob.pyz", tmp_path / "state/trainjob.pyz"
    argv = [str(mounted), "--", sys.executable, "train.py"]
    assert done.stdout == f"{argv} {copy}/trainjob_trainer/agent/main.py {copy}\n"
    assert copy.read_bytes() == program


def test_another_program_is_never_run(tmp_path: Path) -> None:
    planted = packed("print('planted')")
    done = start_checked(tmp_path, planted, hashlib.sha256(packed(RUN)).hexdigest())
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"{tmp_path}/bundle/trainjob.pyz is not the program that this pod was created for: "
        "its ConfigMap was replaced\n"
    )
    assert not (tmp_path / "state/trainjob.pyz").exists()


def raw_pod(digest: str = "", phase: str = "Running", namespace: str = "default") -> dict[str, Any]:
    pod = pod_of(source=AgentSource("digits-agent-0", digest))
    pod["metadata"]["namespace"] = namespace
    return {**pod, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("jobs", "pods", "used"),
    [
        ([], [], set()),
        # An old one is needed by the pods that have it.
        ([], [raw_pod("old")], {("default", "trainjob-agent-old")}),
        ([], [raw_pod("old", "Pending", "lab")], {("lab", "trainjob-agent-old")}),
        ([], [raw_pod("old", "Succeeded"), raw_pod("old", "Failed")], set()),
        ([], [raw_pod(""), pod_of(restartStrategy="Recreate")], set()),
        ([], [{"metadata": {"name": "odd", "namespace": "default"}}], set()),
        # The present one is needed by every job that may still get pods.
        ([build_job()], [], {("default", "trainjob-agent-now")}),
        ([build_job(namespace="lab", suspend=True)], [], {("lab", "trainjob-agent-now")}),
        ([build_job(restartStrategy="Recreate")], [], set()),
        ([{**build_job(), "status": {"state": "Running"}}], [], {("default", "trainjob-agent-now")}),
        ([{**build_job(), "status": {"completionTime": "2026-01-01T00:00:00Z"}}], [], set()),
        (
            [build_job()],
            [raw_pod("old")],
            {("default", "trainjob-agent-now"), ("default", "trainjob-agent-old")},
        ),
    ],
)
def test_which_programs_are_needed(jobs: list[Any], pods: list[Any], used: set[tuple[str, str]]) -> None:
    assert programs_in_use(jobs, pods, "now") == used


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(Bundle(b"secret", b"secret"))
