"""`trainjob profile`, on this machine and in a cluster; the trainer is played by the test."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.cli.requests import Answer, Asked
from support.cli.server import CliServer
from support.cli.stored_jobs import RUNNING, call, ended, stored_job, stored_pod
from trainjob.client import profile
from trainjob.client.profile import choose

WRITTEN = {"state": "written", "first": 96, "last": 130, "folder": "/output/digits/logs/train"}


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "_SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(profile, "NO_ANSWER_SECONDS", 0.5)


class Pod:
    """Runs what is sent to it, in an output folder of its own, and answers requests."""

    def __init__(self, output: Path, *answers: dict[str, Any]) -> None:
        self.output = output
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []

    def __call__(self, command: Sequence[str]) -> tuple[int | str, str, str]:
        assert command[:4] == ["python3", "-I", "-S", "-c"]
        if command[5] == "answer" and self.answers:
            (request,) = (self.output / "profile").glob("worker-?.json")
            self.requests.append(json.loads(request.read_text()))
            answer = {"id": self.requests[-1]["id"], **self.answers.pop(0)}
            request.with_suffix(".answer.json").write_text(json.dumps(answer))
        done = subprocess.run(
            [sys.executable, *command[1:]],
            env={**os.environ, "TRAINJOB_OUTPUT_DIR": str(self.output)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr


def test_what_a_pod_answers_drives_no_terminal(api: CliServer, tmp_path: Path) -> None:
    api.put(stored_job("Running"))
    api.put(stored_pod("worker", 0, container=RUNNING))
    folder = "/output/x\x1b]0;title\x07; rm -rf ~\x1b[2J\u202e\nsteps 1-2: /forged/logs/train"
    message = "ended\x1b[31m early\r\nsteps 1-2: /forged"
    api.program = Pod(tmp_path, {**WRITTEN, "folder": folder, "first": "\x1b[2J", "message": message})
    result = call("profile", "digits")
    assert result.stderr.splitlines() == ["ended early steps 1-2: /forged"]
    assert result.stdout.splitlines() == [
        "steps None-130: /output/x; rm -rf ~ steps 1-2: /forged/logs/train (in the job's output)",
        "tensorboard --logdir '/output/x; rm -rf ~ steps 1-2: /forged'"
        "   (with the package tensorboard-plugin-profile)",
    ]


def test_a_worker_of_a_job_in_a_cluster(api: CliServer, tmp_path: Path) -> None:
    api.put(stored_job("Running"))
    api.put(stored_pod("worker", 1, container=RUNNING))
    pod = api.program = Pod(
        tmp_path, {"state": "waiting", "step": 40}, {"state": "profiling", "first": 96}, WRITTEN
    )
    result = call("profile", "digits", "--steps", "100-120", "--worker", "1")
    assert (result.exit_code, result.stderr.splitlines()) == (
        0,
        ["worker 1: waiting for the step; 40 are done", "worker 1: recording from step 96 on"],
    )
    assert result.stdout.splitlines() == [
        "steps 96-130: /output/digits/logs/train (in the job's output)",
        "tensorboard --logdir /output/digits   (with the package tensorboard-plugin-profile)",
    ]
    assert {(r["first"], r["last"]) for r in pod.requests} == {(100, 120)}
    assert len({r["id"] for r in pod.requests}) == 1
    assert not list((tmp_path / "profile").iterdir())


def test_a_record_that_ended_sooner_says_why(api: CliServer, tmp_path: Path) -> None:
    api.put(stored_job("Running"))
    api.put(stored_pod("worker", 0, container=RUNNING))
    api.program = Pod(tmp_path, {**WRITTEN, "message": "ended after 20 s"})
    result = call("profile", "digits", "--steps", "5000")
    assert (result.exit_code, result.stderr.splitlines()) == (0, ["ended after 20 s"])
    assert result.stdout.startswith("steps 96-130: ")


@pytest.mark.parametrize(
    ("pod", "answers", "told"),
    [
        (None, [], "worker 0 can't be asked: it has no pod now"),
        ({}, [], "worker 0 can't be asked: waiting for a node"),
        ({"container": ended(0)}, [], "worker 0 can't be asked: its pod has ended (exit code 0)"),
        ({"container": RUNNING}, [{"state": "refused", "message": "it is over"}], "worker 0: it is over"),
        ({"container": RUNNING}, [], "worker 0 has not answered"),
    ],
)
def test_what_is_not_available_is_reported(
    pod: dict[str, Any] | None, answers: list[dict[str, Any]], told: str, api: CliServer, tmp_path: Path
) -> None:
    api.put(stored_job("Running"))
    if pod is not None:
        api.put(stored_pod(**pod))
    api.program = Pod(tmp_path, *answers)
    result = call("profile", "digits")
    assert (result.exit_code, result.stdout) == (1, "")
    assert told in result.stderr


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (
            ("exec: python3: not found", "", ""),
            "no python3 can be run in pod digits-worker-0-1: exec: python3",
        ),
        ((1, "", "Traceback\nKeyError: 'TRAINJOB_OUTPUT_DIR'\n"), "can't be asked: KeyError: 'TRAINJOB"),
    ],
)
def test_a_container_without_python(program: tuple[int | str, str, str], told: str, api: CliServer) -> None:
    api.put(stored_job("Running"))
    api.put(stored_pod(container=RUNNING))
    api.program = lambda _: program
    result = call("profile", "digits")
    assert (result.exit_code, result.stdout) == (1, "")
    assert told in result.stderr


def test_an_account_that_may_not_run_programs_in_pods(api: CliServer) -> None:
    def forbid(asked: Asked) -> None:
        if asked.part == "exec":
            raise Answer(403, "Forbidden", 'pods "digits-worker-0-1" is forbidden: cannot create pods/exec')

    api.rules.append(forbid)
    api.put(stored_job("Running"))
    api.put(stored_pod(container=RUNNING))
    result = call("profile", "digits")
    assert result.exit_code == 4
    assert result.stderr.startswith("the API server doesn't allow it: pods")
    assert "cannot create pods/exec" in result.stderr


@pytest.mark.parametrize("state", ["Complete", "Failed"])
def test_a_job_that_is_over(state: str, api: CliServer) -> None:
    api.put(stored_job(state))
    result = call("profile", "digits")
    assert (result.exit_code, result.stderr) == (
        1,
        f"digits is over: {state}; only a job that trains can be profiled\n",
    )


def test_a_job_that_is_not_there(api: CliServer) -> None:
    assert call("profile", "digits").exit_code == 3
    assert call("profile", "digits", "--local", "--folder", "nowhere").exit_code == 3


def test_a_job_that_ends_meanwhile(api: CliServer, tmp_path: Path) -> None:
    api.put(stored_job("Running"))
    api.put(stored_pod(container=RUNNING))
    pod = Pod(tmp_path)

    def end(command: Sequence[str]) -> tuple[int | str, str, str]:
        api.put(stored_job("Complete"))
        return pod(command)

    api.program = end
    result = call("profile", "digits")
    assert (result.exit_code, result.stderr) == (1, "digits is over: Complete\n")


@pytest.mark.parametrize(
    ("spec", "worker", "chosen"),
    [
        ({"worker": {"replicas": 2}}, None, "worker-0"),
        ({"worker": {"replicas": 2}}, 1, "worker-1"),
        ({"worker": {"replicas": 2}}, 2, "there is no worker 2: the job has 2, from 0"),
        ({}, 1, "there is no worker 1: the job has 1, from 0"),
        ({"chief": {}, "worker": {"replicas": 2}}, None, "chief-0"),
        ({"chief": {}, "worker": {"replicas": 2}}, 0, "worker-0"),
        ({"chief": {}, "ps": {"replicas": 1}}, None, "with parameter servers"),
    ],
)
def test_which_replica(spec: dict[str, Any], worker: int | None, chosen: str) -> None:
    try:
        told = choose(spec, worker).name
    except profile.ClusterProblem as problem:
        told = str(problem)
    assert chosen in told


@pytest.mark.parametrize("steps", ["0", "5-3", "0-3", "-3", "ten", "1-", "1-2-3", ""])
def test_steps_that_are_none(steps: str) -> None:
    result = call("profile", "digits", f"--steps={steps}")
    assert result.exit_code == 2
    assert "are no steps: write 100-120, or 20 for the next twenty" in result.stderr


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Path]:
    """The output of a job that runs on this machine."""
    output = tmp_path / "runs/training/digits"
    output.mkdir(parents=True)
    (tmp_path / "runs/training/digits.1").mkdir()
    with (output / ".trainjob.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield output


def test_a_job_on_this_machine(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = local / "profile/worker-0.json"

    def train() -> None:
        while not request.exists():
            pass
        answer = {**WRITTEN, "id": json.loads(request.read_text())["id"], "folder": str(local / "logs/train")}
        request.with_suffix(".tmp").write_text(json.dumps(answer))
        request.with_suffix(".tmp").replace(request.with_suffix(".answer.json"))

    monkeypatch.chdir(local.parents[2])
    trainer = threading.Thread(target=train, daemon=True)
    trainer.start()
    result = call("profile", "digits", "--local", "--folder", "runs")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[0] == f"steps 96-130: {local}/logs/train"
    assert result.stdout.splitlines()[1].startswith("tensorboard --logdir runs/training/digits ")


def test_a_run_that_has_ended(local: Path) -> None:
    (local / ".trainjob.lock").unlink()
    result = call("profile", "digits", "--local", "--folder", str(local.parents[1]))
    assert result.exit_code == 3
    assert f"no `trainjob run` trains digits into {local.parents[1]}" in result.stderr


def test_no_run_of_that_name() -> None:
    result = call("profile", "digits", "--local")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "no `trainjob run` trains digits on this machine: `trainjob list` shows" in result.stderr


def test_two_runs_of_one_name(local: Path) -> None:
    other = local.parents[1] / "other/digits"
    other.mkdir(parents=True)
    with (other / ".trainjob.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = call("profile", "digits", "--local", "--folder", str(local.parents[1]))
    assert result.exit_code == 3
    assert "several runs of digits are under way" in result.stderr
