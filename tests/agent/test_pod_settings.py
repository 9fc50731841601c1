"""What the operator writes into a pod for its agent is what the agent reads."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from support.world.jobs import build_job
from trainjob.api import AGENT_PORT, PORT, parse
from trainjob.core.agent import (
    BUNDLE_FOLDER,
    CHECKED_START,
    CODE_FOLDER,
    PROGRAM,
    STATE_FOLDER,
    agent_source,
    job_token,
)
from trainjob.core.manifests import build_pod, build_token_secret
from trainjob.core.settings import Bundle
from trainjob_trainer.agent.code import Code
from trainjob_trainer.agent.settings import Address, Settings, read_settings
from trainjob_trainer.contract.files import CODE, TOKEN
from trainjob_trainer.errors import InvalidConfiguration

KEY = b"some key"
BUNDLE = Bundle(b"zip", KEY)


def settings_of(folder: Path, role: str, index: int = 0, incarnation: int = 1, **job: Any) -> Settings:
    """Return what the agent of one pod reads, from a bundle in `folder`."""
    parsed = parse(build_job(uid="some-uid", **job))
    secret = build_token_secret(parsed, BUNDLE)
    (folder / TOKEN).write_bytes(base64.b64decode(secret["data"][TOKEN]))
    source = agent_source(parsed.metadata, BUNDLE)
    pod = build_pod(parsed, role=role, index=index, incarnation=incarnation, attempt=1, source=source)
    container = pod["spec"]["containers"][0]
    env = {v["name"]: v.get("value", "10.1.2.3") for v in container["env"]}
    command = container["command"]
    split = command.index("--")
    assert command[:5] == ["python", "-I", "-S", "-c", CHECKED_START]
    assert command[5:split] == [f"{BUNDLE_FOLDER}/{PROGRAM}", f"{STATE_FOLDER}/{PROGRAM}", BUNDLE.digest]
    return read_settings(command[split + 1 :], env, folder)


def test_a_workers_settings(tmp_path: Path) -> None:
    read = settings_of(
        tmp_path,
        "worker",
        1,
        3,
        maxRestarts=7,
        stallTimeoutSeconds=90,
        pod={"terminationGracePeriodSeconds": 45},
    )
    assert (read.task.replica, read.incarnation, read.max_restarts) == ("worker-1", 3, 7)
    assert (read.stall_timeout, read.grace, read.warm_standby) == (90, 45, False)
    assert not read.memory_grows
    assert read.address == Address("digits-worker-1.digits.default.svc", AGENT_PORT)
    assert read.leader == Address("digits-worker-0.digits.default.svc", AGENT_PORT)
    assert (read.tf_port, read.pod_ip, read.state_dir) == (PORT, "10.1.2.3", Path(STATE_FOLDER))
    assert read.token == job_token(KEY, "some-uid")
    assert list(read.command) == ["python", "train.py"]
    assert not read.task.is_writer
    assert not read.task.is_evaluator


def test_memory_that_may_grow(tmp_path: Path) -> None:
    container = {"resources": {"limits": {"memory": "8Gi"}}}
    worker = {"replicas": 2, "maxAllowed": {"memory": "16Gi"}}
    assert settings_of(tmp_path, "worker", container=container, worker=worker).memory_grows


def test_the_jobs_code(tmp_path: Path) -> None:
    read = settings_of(tmp_path, "worker", code={"configMap": "digits-code-1", "digest": "0" * 64})
    assert read.code == Code(tmp_path / CODE, "0" * 64, Path(CODE_FOLDER))
    assert settings_of(tmp_path, "worker").code is None


@pytest.mark.parametrize(("role", "leads", "observes"), [("worker", True, False), ("evaluator", False, True)])
def test_the_other_roles_settings(role: str, leads: bool, observes: bool, tmp_path: Path) -> None:
    read = settings_of(tmp_path, role)
    assert (read.task.is_writer, read.task.is_evaluator) == (leads, observes)
    assert (read.stall_timeout, read.grace) == (None, 30)


def test_a_chief_leads(tmp_path: Path) -> None:
    job = {"chief": {}, "ps": {"replicas": 2}, "evaluator": False}
    replicas = [("chief", 0), ("worker", 0), ("ps", 1)]
    read = [settings_of(tmp_path, role, index, **job) for role, index in replicas]
    assert [settings.task.is_writer for settings in read] == [True, False, False]
    assert {str(settings.leader) for settings in read} == {f"digits-chief-0.digits.default.svc:{AGENT_PORT}"}


def test_a_token_that_was_replaced_is_refused(tmp_path: Path) -> None:
    parsed = parse(build_job(uid="some-uid"))
    source = agent_source(parsed.metadata, BUNDLE)
    pod = build_pod(parsed, role="worker", index=0, incarnation=1, attempt=1, source=source)
    env = {v["name"]: v.get("value", "") for v in pod["spec"]["containers"][0]["env"]}
    (tmp_path / TOKEN).write_text(job_token(b"a planted key", "some-uid"))
    with pytest.raises(InvalidConfiguration, match="not the job's token: its Secret was replaced"):
        read_settings(["python"], env, tmp_path)


def test_the_restart_counts(tmp_path: Path) -> None:
    job = build_job(uid="some-uid")
    job["status"] = {
        "attempt": 5,
        "restarts": {"counted": 3, "notCounted": 1, "reset": 2, "sinceProgress": 1, "furthestStep": 40},
    }
    parsed = parse(job)
    pod = build_pod(parsed, role="worker", index=0, incarnation=6, attempt=6)
    env = {v["name"]: v.get("value", "") for v in pod["spec"]["containers"][0]["env"]}
    (tmp_path / TOKEN).write_text("x")
    counts = read_settings(["python"], env, tmp_path).counts.to_json()
    assert counts == {
        "attempt": 5,
        "counted": 5,
        "notCounted": 1,
        "reset": 2,
        "sinceProgress": 1,
        "furthestStep": 40,
    }
