"""`list`, `suspend`, `resume`, `scale` and `delete` for jobs in a cluster."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from support.cli.program import GUARD_SECONDS, NOW, terminal
from support.cli.requests import Answer, Asked
from support.cli.server import CliServer
from support.cli.stored_jobs import call, store_run, stored_job
from trainjob.client.function import COMMAND
from trainjob.client.request import Request
from trainjob.core.names import FUNCTION


@pytest.mark.parametrize(
    ("command", "told", "spec"),
    [
        (["suspend", "digits"], "digits suspended\n", {"suspend": True}),
        (["resume", "digits"], "digits resumed\n", {"suspend": False}),
        (["scale", "digits", "--replicas", "4"], "digits scaled to 4 workers\n", {"worker": {"replicas": 4}}),
    ],
)
def test_changes(command: list[str], told: str, spec: dict[str, Any], api: CliServer) -> None:
    api.put(stored_job())
    result = call(*command)
    assert (result.exit_code, result.stdout, result.stderr) == (0, told, "")
    stored = api.get("trainjobs", "digits")
    assert stored is not None
    assert stored["spec"] == {**stored_job()["spec"], **spec}


def test_a_change_that_is_refused(api: CliServer) -> None:
    def refuse(asked: Asked) -> None:
        if asked.verb == "patch":
            raise Answer(422, "Invalid", "spec.worker.replicas: must be less")

    api.put(stored_job())
    api.rules.append(refuse)
    result = call("scale", "digits", "--replicas", "9")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "spec.worker.replicas: must be less" in result.stderr


@pytest.mark.parametrize("command", [["suspend"], ["delete"], ["scale", "--replicas", "2"]])
def test_no_such_job(command: list[str], api: CliServer) -> None:
    api.put(stored_job())
    result = call(*command, "digit")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "did you mean digits?" in result.stderr


def test_deletion(api: CliServer) -> None:
    api.put(stored_job())
    api.put(stored_job(name="other"))
    result = call("delete", "digits", "other")
    assert result.exit_code == 0
    assert result.stdout == ("digits deleted from namespace default\nother deleted from namespace default\n")
    assert api.get("trainjobs", "digits") is None
    assert api.get("trainjobs", "other") is None


def test_a_runs_folder_is_removed_after_a_question(tmp_path: Path) -> None:
    folder = store_run(tmp_path / "runs/training/digits", ended=NOW, end="interrupted")
    (folder / "model").write_bytes(bytes(12_000_000))
    question = "digits: remove runs/training/digits (12 MB) and everything in it? [y/N]: "
    for answer, code in ((b"n\n", 1), (b"y\n", 0)):
        assert folder.is_dir()
        with terminal("delete", "digits", cwd=tmp_path) as (process, screen):
            screen.read_until(question)
            screen.type(answer)
            assert process.wait(timeout=GUARD_SECONDS) == code
    assert list(folder.parent.iterdir()) == []


def test_the_jobs_of_the_cluster_are_listed(api: CliServer) -> None:
    evaluation = {"step": 9, "metrics": {"loss": "0.5", "accuracy": "0.975"}}
    api.put(stored_job(progress={"step": 3, "totalSteps": 9}, evaluation=evaluation))
    result = call("list")
    assert (result.exit_code, result.stderr) == (0, "")
    titles, row = result.stdout.splitlines()
    assert titles.split() == ["NAME", "STATE", "STEP", "SCORE", "AGE", "SIZE", "REQUEST", "PLACE"]
    assert row.split()[:6] == ["digits", "Running", "3/9", "accuracy", "97.5", "%"]
    assert row.endswith("   -      train.py   namespace default")


def test_what_is_listed_can_be_chosen(
    api: CliServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = {"command": ["python", "-u", "a.py"], "arguments": ["--rate", "0.1"], "env TRAIN_KEEP": "2"}
    for name, began in (("old", NOW - timedelta(days=1)), ("new", NOW + timedelta(days=1))):
        store_run(tmp_path / name, ended=NOW, end="interrupted", began=began, request=Request(asked=asked))
    function = {FUNCTION: json.dumps({"function": "x", "files": "", "kwargs": {"epochs": 9}})}
    job = stored_job("Complete")
    job["metadata"]["annotations"] = function
    job["spec"]["template"]["spec"]["containers"][0]["command"] = [*COMMAND]
    api.put(job)

    def names(*options: str) -> list[str]:
        return [line.split()[0] for line in call("list", *options).stdout.splitlines()[1:]]

    assert names() == ["new", "digits", "old"]
    assert names("--here") == ["new", "old"]
    assert names("--last", "2") == ["new", "digits"]
    assert names("--state", "interrupted", "--last", "1") == ["new"]
    assert call("list", "--state", "Runing").stderr == (
        "none of them is Runing; there are: Complete, Interrupted\n"
    )
    assert call("list", "--here", "-A").exit_code == 2
    lines = call("list").stdout.splitlines()
    assert lines[1].endswith("   a.py --rate 0.1 TRAIN_KEEP=2   new")
    assert "   epochs=9   " in lines[2]


def test_a_cluster_that_can_not_be_asked_hides_no_runs(api: CliServer) -> None:
    def refuse(_asked: Asked) -> None:
        raise Answer(403, "Forbidden", "no")

    api.rules.append(refuse)
    result = call("list")
    assert result.exit_code == 0
    assert "trainjob: the cluster's jobs aren't listed: the API server doesn't allow it: no" in result.stderr
    assert "there are no runs on this machine" in result.stderr
    assert call("list", "-n", "default").exit_code == 4
