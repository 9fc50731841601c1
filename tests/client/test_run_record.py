"""Records of runs: what is read again, what a dead process leaves, what a name means, what is finished."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.cli.program import NOW, build_replica, build_run, condition
from support.cli.stored_jobs import store_run
from support.world.jobs import build_job
from trainjob.client.problems import ClusterProblem, NoJob
from trainjob.client.run_record import (
    RECORD_NAME,
    Run,
    RunRecord,
    all_runs,
    describe_finished,
    digest_request,
    find_run,
    forget,
    identify_process,
    read_run_folder,
    remember,
)
from trainjob.client.runs import LocalJob, log_files, results_in
from trainjob.client.view import ReplicaView
from trainjob.cluster.local import LocalOptions
from trainjob.core.agent_reports import EvaluationResult, Report

COMPLETE = condition("Complete", "TrainingFinished", "done")


def test_a_view_is_read_as_it_was_written(tmp_path: Path) -> None:
    score = {"step": 440, "metrics": {"accuracy": 0.975, "auc": "nan"}, "final": True}
    report = Report.model_validate({"state": "evaluating", "step": 3, "totalEpochs": 5, "evaluation": score})
    view = build_run(
        [
            build_replica("worker-0", exit_code=1, message="boom"),
            ReplicaView("evaluator-0", "evaluating", report),
        ],
        evaluation=EvaluationResult.model_validate(score),
        checkpoint_step=440,
        conditions=[COMPLETE],
        progress={"step": 3, "metrics": {"loss": "nan"}},
        notices=["trained alone"],
    )
    run = read_run_folder(store_run(tmp_path, view))
    assert run is not None
    assert run.record.view == view
    assert [path.name for path in tmp_path.iterdir()] == [RECORD_NAME]


@pytest.mark.parametrize(
    ("fields", "state", "message"),
    [
        ({}, "Running", "training"),
        (
            {"pid": 2**22 + 1},
            "Interrupted",
            "its process is gone: killed, or the machine went down at step 5",
        ),
        ({"process": "an earlier one"}, "Interrupted", "its process is gone: killed, or the machine went"),
        (
            {"ended": NOW, "end": "interrupted"},
            "Interrupted",
            "it was stopped at step 5; continue with the same",
        ),
        ({"host": "another machine"}, "Interrupted", "its process is gone"),  # nobody holds the output
    ],
)
def test_a_run_whose_process_is_gone_is_interrupted(
    fields: dict[str, Any], state: str, message: str, tmp_path: Path
) -> None:
    view = build_run([build_replica()], message="training", progress={"step": 5})
    run = read_run_folder(store_run(tmp_path, view, command="trainjob run job.yaml", **fields))
    assert run is not None
    assert run.view.state == state
    assert run.view.message.startswith(message)
    assert run.view.is_over == (state != "Running")
    assert run.view.replicas[0].state == ("training" if state == "Running" else "ended")


def test_a_job_that_had_ended_stays_so(tmp_path: Path) -> None:
    run = read_run_folder(
        store_run(tmp_path, build_run(state="Complete", conditions=[COMPLETE]), pid=2**22 + 1)
    )
    assert run is not None
    assert run.view.state == "Complete"


def test_a_process_is_known_by_its_start() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        known = identify_process(process.pid)
        assert known == identify_process(process.pid) != identify_process(os.getpid())
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is a zombie
        assert identify_process(process.pid) is None


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"version": 2}', b"[" * 10**5])
def test_a_damaged_record_is_none(content: bytes, tmp_path: Path) -> None:
    (store_run(tmp_path / "digits") / RECORD_NAME).write_bytes(content)
    assert read_run_folder(tmp_path / "digits") is None
    assert all_runs() == ()


def test_a_folder_may_vanish_while_its_files_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    (logs / "replicas").mkdir(parents=True)
    (logs / "replicas" / "worker-0.log").touch()
    assert log_files(tmp_path).keys() == {"worker-0"}
    real, removed = os.scandir, list[Path]()

    def scan(path: Any) -> Any:
        for folder in (logs / "replicas", tmp_path):
            if str(path) == str(folder) and folder not in removed:
                removed.append(folder)
                shutil.rmtree(folder)
        return real(path)

    monkeypatch.setattr("os.scandir", scan)
    assert log_files(tmp_path) == {}
    assert not results_in(tmp_path).has_events
    assert not results_in(tmp_path).has_checkpoints
    assert removed == [logs / "replicas", tmp_path]


def test_the_index(tmp_path: Path) -> None:
    first = store_run(tmp_path / "a/digits", began=datetime(2026, 1, 1, tzinfo=UTC))
    second = store_run(tmp_path / "b/digits", began=datetime(2026, 1, 2, tzinfo=UTC))
    remember(second)
    assert [run.folder for run in all_runs()] == [second, first]
    forget(second)
    assert [run.folder for run in all_runs()] == [first]
    first.rename(tmp_path / "a/moved")
    assert all_runs() == ()
    (tmp_path / "a/moved").rename(first)
    assert all_runs() == ()  # a folder that was not there is forgotten


def test_which_run_a_name_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = store_run(tmp_path / "here/runs/training/digits", ended=NOW, end="interrupted")
    there = store_run(tmp_path / "there/runs/training/digits")
    earlier = store_run(tmp_path / "there/runs/training/digits.1", ended=NOW, end="failed")

    def found(name: str, **options: bool) -> Path | None:
        run = find_run(name, **options)
        return run.folder if run else None

    monkeypatch.chdir(tmp_path / "here")
    assert found("digits") == found("digits", certain=True) == here
    assert found("digits.1") == earlier
    assert found("other") is None
    assert found("../there/runs/training/digits") == tmp_path / "here/../there/runs/training/digits"
    with pytest.raises(NoJob, match="there is no run in the folder runs/training: `trainjob list`"):
        found("runs/training")
    monkeypatch.chdir(tmp_path)
    assert found("digits") == there  # the only one that runs
    with pytest.raises(NoJob, match=r"several runs are named digits: name one by its folder: /.+, /"):
        found("digits", certain=True)


async def test_a_run_that_does_not_respond_is_seen_by_its_record(tmp_path: Path) -> None:
    folder = store_run(tmp_path / "digits", build_run(message="first"), socket=str(tmp_path / "no socket"))
    run = read_run_folder(folder)
    assert run is not None
    job, seen = LocalJob(run), list[str]()
    with pytest.raises(ClusterProblem, match=rf"\(process {os.getpid()}\) doesn't respond: if it is stopped"):
        await job.patch({"suspend": True})
    async for view in job.changes():
        seen.append(view.message)
        ended = {"ended": NOW, "end": "interrupted"} if view.message == "second" else {}
        store_run(folder, build_run(message="second"), **ended)
    assert seen == ["first", "second", "it was stopped"]


# Whether a job has nothing left to do, from its record and its final marker.


FILES = ("job.yaml", "train.py", "inner/model.py", "settings.yaml")
JOB = build_job(
    container={"env": [{"name": "MODE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}
)


def digest(folder: Path, job: dict[str, Any] = JOB, **environ: str) -> str:
    options = LocalOptions(folder=folder / "runs", job_folder=folder)
    return digest_request(job, options, folder / "job.yaml", environ)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("first")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("train.py", True),
        ("inner/model.py", True),
        ("inner/new.py", True),
        ("settings.yaml", True),
        ("job.yaml", False),  # its spec counts
        ("picture.png", False),
        ("runs/training/digits/a.json", False),
        (".hidden/a.py", False),
        ("inner/__pycache__/a.py", False),
    ],
)
def test_which_files_ask_for_something_else(file: str, counts: bool, project: Path) -> None:
    before = digest(project)
    (project / file).parent.mkdir(parents=True, exist_ok=True)
    (project / file).write_text("other")
    assert (digest(project) != before) == counts


def test_what_else_asks_for_something_else(project: Path) -> None:
    other = deepcopy(JOB)
    other["spec"]["template"]["spec"]["containers"][0]["args"] = ["--epochs", "50"]
    assert digest(project, other) != digest(project)
    assert digest(project, TRAIN_EPOCHS="50") != digest(project)
    assert digest(project, MODE="x") != digest(project)
    assert digest(project, TERM="xterm") == digest(project)


def test_code_in_other_folders_counts_too(project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other, modules = tmp_path_factory.mktemp("other"), tmp_path_factory.mktemp("modules")
    for folder in (other, modules):
        (folder / "code.py").write_text("first")
    env = [{"name": "PYTHONPATH", "value": f"/no/such/folder:{modules}"}]
    job = build_job(container={"command": ["python", str(other / "code.py")], "env": env})
    seen = {digest(project, job)}
    for folder in (other, modules):
        (folder / "code.py").write_text("other")
        seen.add(digest(project, job))
    assert len(seen) == 3


def test_too_many_files_are_not_compared(project: Path) -> None:
    for number in range(2001):
        (project / f"{number}.png").touch()
    assert digest(project) == ""


FINAL = {"step": 440, "endedAt": 550, "jobUid": "u"}


@pytest.mark.parametrize(
    ("record", "marker", "is_finished"),
    [
        ({}, FINAL, True),
        ({"request": "other"}, FINAL, False),
        ({"request": ""}, FINAL, False),
        ({"end": "failed"}, FINAL, False),
        ({}, {**FINAL, "jobUid": "other"}, False),
        ({}, {**FINAL, "step": 441}, False),  # there is no such checkpoint
        ({}, [], False),
        ({}, None, False),
    ],
)
def test_when_a_job_is_finished(
    record: dict[str, str], marker: Any, is_finished: bool, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints/step-00000440.1").mkdir(parents=True)
    if marker is not None:
        (tmp_path / "checkpoints/final.json").write_text(json.dumps(marker))
    score = EvaluationResult.model_validate({"step": 440, "metrics": {"loss": 0.1, "accuracy": 0.989}})
    view = replace(build_run([build_replica(total_epochs=25)], evaluation=score), uid="u")
    fields = {"end": "complete", "request": "asked", **record}
    run = Run(tmp_path, RunRecord(view=view, began=NOW, ended=NOW, **fields))  # type: ignore[arg-type]
    told = describe_finished(run, fields["request"] if not record.get("request") else "asked", NOW + MINUTES)
    expected = (
        "digits is finished (step 550, accuracy 98.9 %, 12 minutes ago); "
        "train on: ask for more, such as -- --epochs 50; start over: --fresh"
    )
    assert told == (expected if is_finished else None)


MINUTES = timedelta(minutes=12)
