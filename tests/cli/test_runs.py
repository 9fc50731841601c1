"""Runs on this machine as jobs: seen and changed from other processes, finished, killed, and deleted."""

import asyncio
import json
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
WHY = "train on: ask for more steps; start over: --fresh"


def rows() -> list[list[str]]:
    """The rows of `list`, without its titles."""
    result = call("list")
    assert result.exit_code == 0
    return [line.split() for line in result.stdout.splitlines()[1:]]


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
    again = trainjob("run", str(file), cwd=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == f"digits is finished (step 440, just now); {WHY}\n"
    (tmp_path / "elsewhere").mkdir()
    assert trainjob("run", "../job.yaml", cwd=tmp_path / "elsewhere").stdout == again.stdout

    # What the script reads has changed: whether that asks for more is the trainer's to say.
    (tmp_path / "settings.json").write_text("2")
    third = trainjob("run", str(file), cwd=tmp_path)
    assert (third.returncode, "worker-0: greeting 2" in third.stdout) == (0, True)

    assert [row[:3] for row in rows()] == [["digits", "Complete", "440/440"]]
    logs = call("logs", "digits")
    assert [line for line in logs.stdout.splitlines() if "greeting" in line] == ["worker-0: greeting 2"]
    assert "worker-0: greeting 1\n" in call("logs", "digits", "--previous").stdout
    assert call("logs", "digits", "--tail", "1").stdout == "worker-0: greeting 2\n"
    row = call("get", "digits", "--watch").stdout.splitlines()[1].split()
    assert row[:4] == ["digits", "Complete", "0/1", "440/440"]
    waited = call("wait", "digits")
    assert (waited.exit_code, waited.stdout.splitlines()[0][:18]) == (0, "digits is complete")

    output = tmp_path / "runs/training/digits"
    (output / RECORD_NAME).write_text("no record")
    assert "worker-0: hello from worker 0" in trainjob("run", str(file), cwd=tmp_path).stdout


def test_a_job_that_its_trainer_finds_finished_stays_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.json").write_text("1")
    finished = "if os.path.exists(os.environ['TRAINJOB_CHECKPOINT_DIR'] + '/final.json'): sys.exit(81)\n"
    job = {"workers": 1, "evaluator": False, "restartStrategy": "Recreate"}
    assert trainjob("run", str(write_job(tmp_path, finished + FINISH, **job)), cwd=tmp_path).returncode == 0
    (tmp_path / "settings.json").write_text("2")
    assert trainjob("run", "job.yaml", cwd=tmp_path).returncode == 1
    assert rows()[0][:2] == ["digits", "Complete"]
    assert "digits is finished (step 440, " in trainjob("run", "job.yaml", cwd=tmp_path).stdout
