"""Parameter servers, as real processes under `trainjob run`: who dies alone, and who takes all along."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from support.cli.running import SCRIPTS, processes_of, started_run, write_job
from support.trainer.processes import DEADLINE_SECONDS, WorkerGroup, jsonl
from trainjob_trainer.checkpoint.store import CheckpointStore

STEPS, CHECKPOINT_EVERY = 1200, 100  # the latter is the script's


def job(folder: Path, steps: int = STEPS) -> Path:
    return write_job(
        folder,
        SCRIPTS / "coordinated_job.py",
        {"STEPS": str(steps)},
        chief={},
        worker={"replicas": 2},
        ps={"replicas": 1},
    )


def wait_for_checkpoint(output: Path, beyond: int = 0) -> None:
    until = time.monotonic() + DEADLINE_SECONDS
    while not [one for one in (output / "checkpoints").glob("step-*") if int(one.name[5:]) > beyond]:
        assert time.monotonic() < until, "no checkpoint ever came"
        time.sleep(0.05)


def kill(replica: str, folder: Path) -> None:
    """SIGKILL a replica's training process; its agent lives on."""
    role, _, index = replica.partition("-")
    task = {"type": role, "index": int(index)}
    found = [
        pid for pid, env in training_processes(folder).items() if json.loads(env["TF_CONFIG"])["task"] == task
    ]
    assert len(found) == 1, f"{len(found)} training processes of {replica}"
    os.kill(found[0], signal.SIGKILL)


def training_processes(folder: Path) -> dict[int, dict[str, str]]:
    """The environments of those that agents of jobs below this folder have started."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            pairs = (
                (entry / "environ").read_text(errors="replace").split("\0") if entry.name.isdigit() else []
            )
        except OSError:
            continue
        env = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
        below = str(folder) in env.get("TRAINJOB_OUTPUT_DIR", "")
        if below and "TRAINJOB_AGENT" not in env and "TRAINJOB_PROGRESS_FILE" in env:
            found[int(entry.name)] = env
    return found


def test_a_chief_has_a_worker_train_what_a_server_holds(tmp_path: Path) -> None:
    output, script = tmp_path / "output", SCRIPTS / "coordinated_job.py"
    roles = {"chief": 1, "ps": 1}
    with WorkerGroup(script, output, workers=1, more=roles, env={"STEPS": "200"}) as group:
        assert group["chief-0"].wait() == 0, group.report
        printed = group["chief-0"].output
    assert re.findall(r"counted (\d+) steps, applied (\d+)", printed) == [("200", "200")], printed
    assert CheckpointStore(output / "checkpoints").steps() == [100, 200]
    assert applied_by(output, 200) == 200


@pytest.mark.nightly
def test_workers_that_die_are_started_again_alone(tmp_path: Path) -> None:
    output = tmp_path / "runs" / "training" / "digits"
    with started_run(job(tmp_path), tmp_path / "runs", "-v") as run:
        wait_for_checkpoint(output)
        kill("worker-1", tmp_path)
        run.wait_for_line("restarted alone (restart 1 of")  # of two at once only the later one would be told
        kill("worker-0", tmp_path)
        assert run.wait() == 0, run.output

    printed = run.output
    assert printed.count("chief-0: trainjob: agent: attempt") == 1, printed
    assert printed.count("ps-0: trainjob: agent: attempt") == 1
    assert printed.count("worker-1: trainjob: agent: attempt") == 2
    # One of them may have done all that was left before the other is back.
    assert printed.count("-1 serves at") + printed.count("-0 serves at") > len(
        ["worker-0", "worker-1", "ps-0"]
    )
    assert re.search(r"worker 1 was killed .*restarted alone \(restart 1 of \d+\)", printed), printed
    assert "resumed from" not in printed
    assert applied_by(output, STEPS) >= STEPS
    check_end(output, printed)
    assert processes_of(tmp_path) == {}


def applied_by(output: Path, step: int) -> int:
    """Updates that a checkpoint's optimizer has made: more than its steps where some were taken again."""
    store = CheckpointStore(output / "checkpoints")
    optimizer = store.read(store.at(step))["optimizer"]
    return next(int(array.value) for array in optimizer if array.name.endswith("iteration"))


def check_end(output: Path, printed: str) -> None:
    """The evaluator scores the last checkpoint as final, and the chief returns its weights."""
    *_, last = jsonl(output / "evaluator" / "evaluations.jsonl")
    assert (last["step"], last["final"]) == (STEPS, True)
    assert last["metrics"]["accuracy"] > 0.9
    final = CheckpointStore(output / "checkpoints").final()
    assert final is not None
    assert (final.step, final.ended_at) == (STEPS, STEPS)
    counted, applied = map(int, re.findall(r"chief-0: counted (\d+) steps, applied (\d+)", printed)[0])
    assert (counted, applied) == (STEPS, applied_by(output, STEPS))


@pytest.mark.nightly
def test_who_takes_all_along_to_the_last_checkpoint_and_a_request_to_stop_that_saves(tmp_path: Path) -> None:
    output = tmp_path / "runs" / "training" / "digits"
    with started_run(job(tmp_path, 10**6), tmp_path / "runs") as run:
        wait_for_checkpoint(output)
        kill("ps-0", tmp_path)
        first = resumed_at(run.wait_for_line("resumed from step"))
        kill("chief-0", tmp_path)
        second = resumed_at(run.wait_for_line("resumed from step", times=2))
        wait_for_checkpoint(output, beyond=second)
        run.kill(signal.SIGINT)
        assert run.wait() == 130, run.output
    saved = re.findall(r"The checkpoint of step (\d+) is kept", run.output)
    assert saved, run.output
    assert 0 < first <= second <= int(saved[0])
    assert first % CHECKPOINT_EVERY == second % CHECKPOINT_EVERY == 0
    assert (output / "checkpoints" / f"step-{int(saved[0]):08d}").is_dir()


def resumed_at(line: str) -> int:
    return int(line.partition("resumed from step ")[2].split()[0])
