"""Runs on this machine as jobs: seen and changed from other processes, finished, killed, and deleted."""

import asyncio
import errno
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result

from support.cli.program import BARE, SUCCEED, running, write_job
from support.cli.stored_jobs import call
from support.golden import Golden
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
OUTPUT = Path("runs/training/digits")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Result:
    return call("run", "job.yaml", *arguments)


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
    write_job(tmp_path, **BARE)
    result = run()
    assert result.exit_code == 0, result.output
    assert "is complete" in result.output


def test_a_run_whose_folder_is_away_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainjob.client.local_run.read_run_folder", be_away)
    write_job(tmp_path, **BARE)
    result = run()
    assert result.exit_code == 1
    (line,) = result.output.splitlines()[-1:]
    assert "Stale file handle; check that its disk or server can be reached" in line


def test_a_run_is_seen_changed_and_deleted_while_it_trains(tmp_path: Path) -> None:
    write_job(tmp_path, STAY, evaluator=False, restartStrategy="Recreate")
    with running("run", "-v", "job.yaml", cwd=tmp_path) as training:
        training.read_until("digits: Running: training on 2 workers")
        second = run()
        assert (second.exit_code, second.stdout) == (1, "")
        assert f"(process {training.process.pid}) trains into" in second.stderr
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
            training.read_until("digits: Running: training on 3 workers, attempt 2")
            following.read_until("worker-2: pid", "worker-0: saving")
            assert call("suspend", "digits").stdout == "digits suspended\n"
            training.read_until("digits: Suspended: ", "worker-2: saving")
            assert rows()[0][:2] == ["digits", "Suspended"]
            assert call("resume", "digits").stdout == "digits resumed\n"
            training.read_until("digits: Running: training on 3 workers, attempt 3")

            refused = call("delete", "digits")
            assert refused.exit_code == 2
            assert "this would remove runs/training/digits (" in refused.stderr
            assert OUTPUT.is_dir()
            assert call("delete", "digits", "--yes").stdout == "digits deleted from this machine\n"
            assert following.finish() == 3
        assert following.lines[-1].startswith("digits was deleted (last seen: Running, ")
        assert training.finish() == 3
    assert training.lines[-1] == "digits was deleted; all its processes have ended"
    assert not OUTPUT.exists()
    assert not socket.parent.exists()
    assert rows() == []
    for pid in training.numbers_after("pid"):
        wait_gone(pid)


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where runs have private folders; its path is short enough for a socket."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
        yield Path(folder)


def test_a_killed_run_is_interrupted(temporary: Path, tmp_path: Path) -> None:
    write_job(tmp_path, STAY, **BARE)
    with running("run", "job.yaml", cwd=tmp_path) as training:
        training.read_until("worker-0: training", "worker-0: pid")
        # The record is written every five seconds; the socket knows it at once.
        training.read_until("digits: Running: ")
        training.process.kill()
    for pid in training.numbers_after("pid"):
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
    assert call("delete", str(OUTPUT), "--yes").exit_code == 0
    assert not socket.exists()
    assert not private.exists()
    assert rows() == []


def test_a_finished_job_is_answered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    (tmp_path / "settings.json").write_text("1")
    write_job(tmp_path, FINISH, **BARE)
    assert run().exit_code == 0

    def answer(*words: str) -> str:
        done = call("run", *words)
        assert (done.exit_code, done.stderr) == (0, "")
        return re.sub(r"just now|\d+ \w+ ago", "LATELY", done.stdout)

    finished = answer("job.yaml")
    golden(finished)
    (tmp_path / "elsewhere").mkdir()
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path / "elsewhere")
        assert answer("../job.yaml") == finished
    assert answer("job.yaml", "--set", "spec.maxRestarts=9") == finished

    # What the script reads has changed, and what it is called with.
    (tmp_path / "settings.json").write_text("2")
    refused = run()
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert run().stderr == refused.stderr
    with monkeypatch.context() as patch:
        patch.setenv("TRAIN_SEED", "8")
        golden(refused.stderr, run().stderr)
    (tmp_path / "settings.json").write_text("1")
    assert answer("job.yaml") == finished

    assert [row[:3] for row in rows()] == [["digits", "Complete", "440/440"]]
    logs = call("logs", "digits")
    assert [line for line in logs.stdout.splitlines() if "greeting" in line] == ["worker-0: greeting 1"]
    row = call("get", "digits", "--watch").stdout.splitlines()[1].split()
    assert row[:4] == ["digits", "Complete", "1/1", "440/440"]
    waited = call("wait", "digits")
    assert (waited.exit_code, waited.stdout.splitlines()[0][:18]) == (0, "digits is complete")

    (OUTPUT / RECORD_NAME).write_text("no record")
    assert run().exit_code == 1
    (tmp_path / "settings.json").write_text("2")
    assert run("--fresh").exit_code == 0
    assert "worker-0: greeting 2\n" in call("logs", "digits").stdout


def test_another_request_gets_a_run_of_its_own_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    (tmp_path / "settings.json").write_text("1")
    print_rate = "print('rate', sys.argv[1:], os.environ['TRAINJOB_OUTPUT_DIR'], flush=True)\n"
    write_job(tmp_path, print_rate + FINISH, **BARE)

    def outcome(*arguments: str) -> str:
        """The folder of the run that has started, or what is said of the one that has finished."""
        monkeypatch.setattr(sys, "argv", ["trainjob", "run", "job.yaml", *arguments])
        result = run(*arguments)
        assert result.exit_code == 0, result.output
        if started := re.search(rf"rate {re.escape(str([arguments[-1]]))} (.*)\n", result.stdout):
            return Path(started[1]).name
        return " ".join(result.stdout.split()[:3])

    assert outcome("--new", "--", "0.02") == "digits"
    assert outcome("--new", "--", "0.07") == "digits.2"
    monkeypatch.setenv("TRAINJOB_NEW", "1")
    assert outcome("--", "0.5") == "digits.3"
    record = json.loads((OUTPUT.with_name("digits.3") / RECORD_NAME).read_text())
    assert record["command"] == "trainjob run --new job.yaml -- 0.5"
    monkeypatch.setenv("TRAINJOB_NEW", "true")
    assert outcome("--", "0.5") == "digits.3 is finished"
    monkeypatch.delenv("TRAINJOB_NEW")
    assert outcome("--new", "--", "0.02") == "digits is finished"
    assert outcome("--", "0.02") == "digits is finished"
    assert outcome("--new", "--", "0.07") == "digits.2 is finished"
    assert OUTPUT.with_name("digits.2").joinpath("checkpoints/final.json").exists()
    assert "rate ['0.07']" in call("logs", "digits.2").stdout
    assert outcome("--fresh", "--", "0.07") == "digits"
    assert {row[0] for row in rows()} == {"digits", "digits.2", "digits.3", "digits.4"}
    refused = run("--resume", "digits.2", "--", "0.02")
    assert refused.exit_code == 1
    golden(refused.stderr)
    assert OUTPUT.with_name("digits.2").is_dir()


SAVE = """
folder = os.environ["TRAINJOB_CHECKPOINT_DIR"] + "/step-00000005"
os.makedirs(folder, exist_ok=True)
print("arguments", sys.argv[1:], flush=True)
sys.exit(0 if os.path.exists("end") else 1)
"""


def test_an_unfinished_run_continues_with_other_code_and_not_with_other_arguments(
    tmp_path: Path, golden: Golden
) -> None:
    job = {**BARE, "maxRestarts": 0}
    write_job(tmp_path, "sys.exit(2)", **job)
    assert run("--", "0.2").exit_code == 1
    write_job(tmp_path, SAVE, **job)
    # Nothing was saved, so there is nothing to continue that belongs to another request.
    assert run("--", "0.02").exit_code == 1
    record = (OUTPUT / RECORD_NAME).read_text()
    refused = run("--", "0.07")
    assert (refused.exit_code, refused.stdout) == (1, "")
    golden(refused.stderr)
    assert (OUTPUT / RECORD_NAME).read_text() == record
    write_job(tmp_path, SAVE + "# corrected", **job)
    (tmp_path / "end").touch()
    continued = run("--", "0.02")
    assert continued.exit_code == 0, continued.output
    assert " trainjob: continuing with train.py (changed)\n" in continued.stdout
    assert "worker-0: arguments ['0.02']\n" in continued.stdout


def test_a_longer_training_that_the_trainer_refuses_leaves_the_finished_run(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("1")
    finished = "if os.path.exists(os.environ['TRAINJOB_CHECKPOINT_DIR'] + '/final.json'): sys.exit(81)\n"
    write_job(tmp_path, finished + FINISH, **BARE)
    assert run("--", "--epochs", "9").exit_code == 0
    record = json.loads((OUTPUT / RECORD_NAME).read_text())
    for _ in range(2):
        longer = run("--", "--epochs", "20")
        assert longer.exit_code == 1
        assert " trainjob: continuing with --epochs 20 (was 9)\n" in longer.stdout
    assert json.loads((OUTPUT / RECORD_NAME).read_text()) == record
    assert rows()[0][:2] == ["digits", "Complete"]
    assert "--epochs 5 (was 9); nothing was started" in run("--", "--epochs", "5").stderr
    assert run("--", "--epochs", "9").stdout.startswith("digits is finished (step 440, ")
