"""Runs on this machine as jobs: seen and changed from other processes, finished, killed, and deleted."""

import asyncio
import errno
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli.program import SUCCEED, running, trainjob, write_job
from support.cli.stored_jobs import call
from support.local.local_cluster import wait_gone
from trainjob.client.problems import ClusterProblem
from trainjob.client.run_record import RECORD_NAME, find_run
from trainjob.client.runs import LocalJob

STAY = """
def stop(*_):
    print("saving", flush=True)
    sys.exit(86)
signal.signal(signal.SIGTERM, stop)
print("pid", os.getpid(), flush=True)
if role == "worker":
    report(state="training", step=5, totalSteps=10, checkpointStep=5)
while True: signal.pause()
"""
FINISH = (
    SUCCEED
    + """
print("greeting", open("settings.json").read(), flush=True)
if role == "worker" and index == 0:
    checkpoints = os.environ["TRAINJOB_CHECKPOINT_DIR"]
    os.makedirs(checkpoints + "/step-00000440", exist_ok=True)
    with open(checkpoints + "/final.json", "w") as marker:
        json.dump({"step": 440, "jobUid": os.environ["TRAINJOB_UID"]}, marker)
"""
)
WHY = "start over: --fresh"


def rows() -> list[list[str]]:
    """The rows of `list`, without its titles."""
    result = call("list")
    assert result.exit_code == 0
    return [line.split() for line in result.stdout.splitlines()[1:]]


def be_away(folder: Path) -> None:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(folder))


def test_a_finished_run_is_complete_where_its_folder_cannot_be_looked_at_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainjob.client.local_run.results_in", be_away)
    result = call("run", str(write_job(tmp_path)), "--folder", str(tmp_path / "runs"))
    assert result.exit_code == 0, result.output
    assert "is complete" in result.output


def test_a_run_whose_folder_is_away_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainjob.client.local_run.read_run_folder", be_away)
    result = call("run", str(write_job(tmp_path)), "--folder", str(tmp_path / "runs"))
    assert result.exit_code == 1
    (line,) = result.output.splitlines()[-1:]
    assert "Stale file handle; check that its disk or server can be reached" in line


def test_a_run_is_seen_changed_and_deleted_while_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_job(tmp_path, STAY)
    output = tmp_path / "runs/training/digits"
    with running("run", "-v", str(file), cwd=tmp_path) as run:
        run.read_until("digits: Running: training on 2 workers")
        assert [row[:2] + row[-1:] for row in rows()] == [["digits", "Running", "runs/training/digits"]]
        title, place, *_ = call("get", "digits").stdout.splitlines()
        assert title == "digits   Running: training on 2 workers"
        assert place == "  folder        runs/training/digits"
        assert json.loads(call("get", "digits", "-o", "json").stdout)["spec"]["worker"] == {"replicas": 2}

        job = LocalJob(find_run("digits"))  # type: ignore[arg-type]
        with pytest.raises(ClusterProblem, match=r"spec.maxRestarts: is immutable; delete the job and"):
            asyncio.run(job.patch({"maxRestarts": 9}))
        with pytest.raises(ClusterProblem, match=r"spec.worker.replicas: "):
            asyncio.run(job.patch({"worker": {"replicas": 0}}))
        socket = Path(job._run.record.socket)
        assert (socket.stat().st_mode & 0o777, socket.parent.stat().st_mode & 0o777) == (0o600, 0o700)

        with running("logs", "digits", "-f", "--role", "worker", cwd=tmp_path) as following:
            following.read_until("worker-1: pid")
            assert call("scale", "digits", "--replicas", "3").stdout == "digits scaled to 3 workers\n"
            run.read_until("digits: Running: training on 3 workers, attempt 2")
            following.read_until("worker-2: pid", "worker-0: saving")
            assert call("suspend", "digits").stdout == "digits suspended\n"
            run.read_until("digits: Suspended: ", "worker-2: saving")
            assert rows()[0][:2] == ["digits", "Suspended"]
            assert call("resume", "digits").stdout == "digits resumed\n"
            run.read_until("digits: Running: training on 3 workers, attempt 3")

            refused = call("delete", "digits")
            assert refused.exit_code == 2
            assert "this would remove runs/training/digits (" in refused.stderr
            assert output.is_dir()
            assert call("delete", "digits", "--yes").stdout == "digits deleted from this machine\n"
            assert following.finish() == 3
        assert following.lines[-1].startswith("digits was deleted (last seen: Running, ")
        assert run.finish() == 3
    assert run.lines[-1] == "digits was deleted; all its processes have ended"
    assert not output.exists()
    assert not socket.parent.exists()
    assert rows() == []
    for pid in run.numbers_after("pid"):
        wait_gone(pid)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where runs have private folders; its path is short enough for a socket."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        yield Path(folder)


def test_a_killed_run_is_interrupted(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write_job(tmp_path, STAY, workers=1, evaluator=False)
    with running("run", "job.yaml", cwd=tmp_path) as run:
        run.read_until("worker-0: training", "worker-0: pid")
        # The record is written every five seconds; the socket knows it at once.
        run.read_until("digits: Running: ")
        run.process.kill()
    for pid in run.numbers_after("pid"):
        wait_gone(pid)
    socket = Path(find_run("digits").record.socket)  # type: ignore[union-attr]
    assert socket.exists()
    (private,) = set(temporary.glob("trainjob-*")) - {socket.parent}
    assert rows()[0][:2] == ["digits", "Interrupted"]
    waited = call("wait", "digits")
    assert waited.exit_code == 1
    assert waited.stderr.startswith(
        "digits was interrupted: its process is gone: killed, or the machine went down"
    )
    assert waited.stderr.endswith("continue with the same command: trainjob run job.yaml\n")
    assert call("scale", "digits", "--replicas", "2").exit_code == 1
    assert "worker-0: pid" in call("logs", "digits").stdout
    assert call("delete", str(file.parent / "runs/training/digits"), "--yes").exit_code == 0
    assert not socket.exists()
    assert not private.exists()
    assert rows() == []


def test_a_finished_job_is_answered_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.json").write_text("1")
    file = write_job(tmp_path, FINISH, workers=1, evaluator=False, restartStrategy="Recreate")
    assert trainjob("run", str(file), cwd=tmp_path).returncode == 0

    def answer(*words: str, cwd: Path = tmp_path) -> str:
        done = trainjob("run", *words, cwd=cwd)
        assert (done.returncode, done.stderr) == (0, "")
        return re.sub(r"just now|\d+ \w+ ago", "LATELY", done.stdout)

    finished = f"digits is finished (step 440, LATELY); {WHY}\n"
    assert answer(str(file)) == finished
    (tmp_path / "elsewhere").mkdir()
    assert answer("../job.yaml", cwd=tmp_path / "elsewhere") == finished
    assert answer(str(file), "--set", "spec.maxRestarts=9") == finished

    # What the script reads has changed, and what it is called with.
    (tmp_path / "settings.json").write_text("2")
    differs = (
        "digits is finished, and this is another request: settings.json (changed); nothing was started; "
    )
    ways = "start over: --fresh; train it separately: --set metadata.name=NAME, or --new\n"
    for _ in range(2):
        third = trainjob("run", str(file), cwd=tmp_path)
        assert (third.returncode, third.stdout, third.stderr) == (1, "", differs + ways)
    other = trainjob("run", str(file), cwd=tmp_path, env={"TRAIN_SEED": "8"})
    assert "another request: env TRAIN_SEED 8 (was not set), settings.json (changed); " in other.stderr
    (tmp_path / "settings.json").write_text("1")
    assert answer(str(file)) == finished

    assert [row[:3] for row in rows()] == [["digits", "Complete", "440/440"]]
    logs = call("logs", "digits")
    assert [line for line in logs.stdout.splitlines() if "greeting" in line] == ["worker-0: greeting 1"]
    row = call("get", "digits", "--watch").stdout.splitlines()[1].split()
    assert row[:4] == ["digits", "Complete", "1/1", "440/440"]
    waited = call("wait", "digits")
    assert (waited.exit_code, waited.stdout.splitlines()[0][:18]) == (0, "digits is complete")

    (tmp_path / "runs/training/digits" / RECORD_NAME).write_text("no record")
    assert "without a record of its request" in trainjob("run", str(file), cwd=tmp_path).stderr
    (tmp_path / "settings.json").write_text("2")
    assert trainjob("run", str(file), "--fresh", cwd=tmp_path).returncode == 0
    assert "worker-0: greeting 2\n" in call("logs", "digits").stdout


def test_another_request_gets_a_run_of_its_own_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.json").write_text("1")
    print_rate = "print('rate', sys.argv[1:], os.environ['TRAINJOB_OUTPUT_DIR'], flush=True)\n"
    write_job(tmp_path, print_rate + FINISH, workers=1, evaluator=False, restartStrategy="Recreate")

    def run(*arguments: str, **env: str) -> str:
        result = trainjob("run", "job.yaml", *arguments, cwd=tmp_path, env=env)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    output = tmp_path / "runs/training/digits"
    assert f"rate ['0.02'] {output}\n" in run("--new", "--", "0.02")
    assert f"rate ['0.07'] {output}.2\n" in run("--new", "--", "0.07")
    assert f"rate ['0.5'] {output}.3\n" in run("--", "0.5", TRAINJOB_NEW="1")
    assert run("--new", "--", "0.02").startswith("digits is finished (step 440, ")
    assert run("--", "0.02").startswith("digits is finished (step 440, ")
    assert run("--new", "--", "0.07").startswith("digits.2 is finished (step 440, ")
    assert run("--", "0.5", TRAINJOB_NEW="true").startswith("digits.3 is finished (step 440, ")
    assert (output.parent / "digits.2/checkpoints/final.json").exists()
    assert "rate ['0.07']" in call("logs", "digits.2").stdout
    record = json.loads((output.parent / "digits.3" / RECORD_NAME).read_text())
    assert record["command"] == "trainjob run --new job.yaml -- 0.5"
    assert f"rate ['0.07'] {output}\n" in run("--fresh", "--", "0.07")
    assert {row[0] for row in rows()} == {"digits", "digits.2", "digits.3", "digits.4"}
    refused = trainjob("run", "job.yaml", "--resume", "digits.2", "--", "0.02", cwd=tmp_path)
    assert "digits.2 is finished, and this is another request: arguments 0.02 (was 0.07); " in refused.stderr
    assert (output.parent / "digits.2").is_dir()


SAVE = """
folder = os.environ["TRAINJOB_CHECKPOINT_DIR"] + "/step-00000005"
os.makedirs(folder, exist_ok=True)
print("arguments", sys.argv[1:], flush=True)
sys.exit(0 if os.path.exists("end") else 1)
"""


def test_an_unfinished_run_continues_with_other_code_and_not_with_other_arguments(tmp_path: Path) -> None:
    job = {"workers": 1, "evaluator": False, "restartStrategy": "Recreate", "maxRestarts": 0}
    write_job(tmp_path, "sys.exit(2)", **job)
    assert trainjob("run", "job.yaml", "--", "0.2", cwd=tmp_path).returncode == 1
    write_job(tmp_path, SAVE, **job)
    # Nothing was saved, so there is nothing to continue that belongs to another request.
    assert trainjob("run", "job.yaml", "--", "0.02", cwd=tmp_path).returncode == 1
    record = (tmp_path / "runs/training/digits" / RECORD_NAME).read_text()
    refused = trainjob("run", "job.yaml", "--", "0.07", cwd=tmp_path)
    told = (
        "digits isn't finished, and this is another request: arguments 0.07 (was 0.02); nothing was started; "
    )
    assert (refused.returncode, refused.stdout, refused.stderr[: len(told)]) == (1, "", told)
    assert (tmp_path / "runs/training/digits" / RECORD_NAME).read_text() == record
    write_job(tmp_path, SAVE + "# corrected", **job)
    (tmp_path / "end").touch()
    continued = trainjob("run", "job.yaml", "--", "0.02", cwd=tmp_path)
    assert continued.returncode == 0, continued.stdout + continued.stderr
    assert " trainjob: continuing with train.py (changed)\n" in continued.stdout
    assert "worker-0: arguments ['0.02']\n" in continued.stdout


def test_a_longer_training_that_the_trainer_refuses_leaves_the_finished_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.json").write_text("1")
    finished = "if os.path.exists(os.environ['TRAINJOB_CHECKPOINT_DIR'] + '/final.json'): sys.exit(81)\n"
    job = {"workers": 1, "evaluator": False, "restartStrategy": "Recreate"}
    write_job(tmp_path, finished + FINISH, **job)

    def run(epochs: str) -> subprocess.CompletedProcess[str]:
        return trainjob("run", "job.yaml", "--", "--epochs", epochs, cwd=tmp_path)

    assert run("9").returncode == 0
    record = json.loads((tmp_path / "runs/training/digits" / RECORD_NAME).read_text())
    for _ in range(2):
        longer = run("20")
        assert longer.returncode == 1
        assert " trainjob: continuing with --epochs 20 (was 9)\n" in longer.stdout
    assert json.loads((tmp_path / "runs/training/digits" / RECORD_NAME).read_text()) == record
    assert rows()[0][:2] == ["digits", "Complete"]
    assert "--epochs 5 (was 9); nothing was started" in run("5").stderr
    assert run("9").stdout.startswith("digits is finished (step 440, ")
