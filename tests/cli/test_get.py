from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cli.program import running, trainjob
from support.cli.requests import Answer, Asked
from support.cli.server import CliServer
from support.cli.stored_jobs import RUNNING, Beside, call, stored_job, stored_pod
from support.golden import Golden
from support.kube.api_server import DEEP


def test_a_table(api: CliServer) -> None:
    api.put(stored_job("Running", progress={"step": 3, "totalSteps": 9}, message="training"))
    api.put(stored_job("Pending", name="other"))
    result = call("get")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["NAME", "STATE", "WORKERS", "STEP", "ETA", "RESTARTS", "AGE"]
    assert [line[:4] for line in lines[1:]] == [
        ["digits", "Running", "-", "3/9"],
        ["other", "Pending", "-", "-"],
    ]
    assert "training" not in result.stdout
    assert call("get", "-o", "wide").stdout.splitlines()[1].endswith("training")


def test_all_namespaces(api: CliServer) -> None:
    job = stored_job()
    job["metadata"]["namespace"] = "team"
    api.put(job)
    assert call("get").stderr == "there are no TrainJobs in namespace default\n"
    assert call("get", "-n", "team").stdout.splitlines()[1].split()[0] == "digits"
    assert call("get", "-A").stdout.splitlines()[1].split()[:2] == ["team", "digits"]


def test_one_as_deep_as_the_api_server_takes_hides_no_others(api: CliServer, tmp_path: Path) -> None:
    """In a process of its own: the limit holds for all of it."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)  # of the server
    try:
        deep: dict[str, Any] = {}
        for _ in range(DEEP - 20):
            deep = {"a": deep}
        job = stored_job("Pending", name="deep")
        job["spec"]["template"]["spec"]["x"] = deep
        api.put(job)
        api.put(stored_job())
        result = trainjob("get", cwd=tmp_path)
    finally:
        sys.setrecursionlimit(before)
    assert (result.returncode, result.stderr) == (0, "")
    assert [line.split()[:2] for line in result.stdout.splitlines()[1:]] == [
        ["deep", "Pending"],
        ["digits", "Running"],
    ]


def test_none_at_all(api: CliServer) -> None:
    result = call("get", "-A")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "there are no TrainJobs in this cluster\n"


def test_one_in_full(api: CliServer) -> None:
    api.put(stored_job(message="training on 2 workers"))
    api.put(stored_pod(container=RUNNING))
    api.put(stored_pod("worker", 1, owner="somebody-else", container=RUNNING))
    result = call("get", "digits")
    assert result.stdout.startswith("digits   Running: training on 2 workers\n")
    assert "digits-worker-0-1" in result.stdout
    assert "digits-worker-1-1" not in result.stdout
    wide = call("get", "digits", "-o", "wide").stdout
    assert wide.splitlines()[0].split()[-1] == "MESSAGE"


def test_one_whose_pods_may_not_be_seen(api: CliServer) -> None:
    def forbid(asked: Asked) -> None:
        if asked.plural == "pods":
            raise Answer(403, "Forbidden", "you may not")

    api.put(stored_job())
    api.rules.append(forbid)
    result = call("get", "digits")
    assert result.exit_code == 0
    assert result.stdout.startswith("digits   Running\n")
    assert result.stderr == "its pods are not shown: the API server doesn't allow it: you may not\n"


@pytest.mark.parametrize("arguments", [("digits",), ()])
def test_for_programs(arguments: tuple[str, ...], api: CliServer) -> None:
    job = stored_job()
    job["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    api.put(job)
    as_json = json.loads(call("get", *arguments, "-o", "json").stdout)
    assert yaml.safe_load(call("get", *arguments, "-o", "yaml").stdout) == as_json
    found = as_json if arguments else as_json["items"][0]
    assert found["status"] == {"state": "Running"}
    assert "managedFields" not in found["metadata"]


def test_changes_as_they_come(api: CliServer, tmp_path: Path) -> None:
    api.put(stored_job("Pending"))
    with running("get", "-w", cwd=tmp_path) as process:
        process.read_until("NAME", "Pending")
        api.put(stored_job("Running"))
        process.read_until("Running")
        api.delete("trainjobs", "digits")
        process.read_until("Deleted")
        process.process.send_signal(signal.SIGINT)
        assert process.finish() == 130
    assert [line.split()[:2] for line in process.lines] == [
        ["NAME", "STATE"],
        ["digits", "Pending"],
        ["digits", "Running"],
        ["digits", "Deleted"],
    ]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("digit",), 3),
        (("digit", "-w"), 3),
        (("digits", "-n", "other"), 3),
        (("digits", "-A"), 2),
        (("-w", "-o", "json"), 2),
    ],
)
def test_what_is_wrong(arguments: tuple[str, ...], code: int, api: CliServer, golden: Golden) -> None:
    api.put(stored_job())
    result = call("get", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    golden(result.stderr.splitlines()[-1])


def test_a_watch_of_one_begins_with_its_row(api: CliServer) -> None:
    api.put(stored_job("Running"))
    watching = Beside("get", "digits", "-w", "-o", "wide")
    api.wait_until(lambda: api.count("watch") == 1)

    def forbid(_: Asked) -> None:
        raise Answer(403, "Forbidden", "enough")

    api.rules.append(forbid)
    api.cut_watches()
    result = watching.finish()
    assert result.exit_code == 4
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["NAME", "digits"]
