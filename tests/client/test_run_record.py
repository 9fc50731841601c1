"""Records of runs: what is read again, what a dead process leaves, what a name means, what is finished."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from support.cli.program import NOW, build_replica, build_run, condition
from support.cli.stored_jobs import store_run
from support.golden import Golden
from trainjob.client.problems import ClusterProblem, NoJob
from trainjob.client.request import Request
from trainjob.client.run_record import (
    RECORD_NAME,
    Run,
    RunRecord,
    all_runs,
    describe_finished,
    find_run,
    forget,
    identify_process,
    read_run_folder,
    remember,
)
from trainjob.client.runs import LocalJob, log_files, results_in
from trainjob.client.view import ReplicaView
from trainjob.core.agent_reports import EvaluationResult, read_report

COMPLETE = condition("Complete", "TrainingFinished", "done")


@pytest.mark.parametrize("failures", [1, 3, 4])
def test_a_record_that_cannot_be_written_for_a_moment_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    left, replace_file = iter(range(failures)), Path.replace

    def fail(path: Path, target: Path) -> Path:
        if next(left, None) is not None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return replace_file(path, target)

    monkeypatch.setattr(Path, "replace", fail)
    monkeypatch.setattr("time.sleep", lambda _: None)
    record = RunRecord(view=build_run(), began=NOW)
    if failures > 3:
        with pytest.raises(OSError, match="Stale"):
            record.write(tmp_path)
        assert list(tmp_path.iterdir()) == []
    else:
        record.write(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == [RECORD_NAME]


def test_a_view_is_read_as_it_was_written(tmp_path: Path) -> None:
    score = {"step": 440, "metrics": {"accuracy": 0.975, "auc": "nan"}, "final": True}
    report = read_report({"state": "evaluating", "step": 3, "totalEpochs": 5, "evaluation": score})
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
    ("fields", "state"),
    [
        ({}, "Running"),
        ({"pid": 2**22 + 1}, "Interrupted"),
        ({"process": "an earlier one"}, "Interrupted"),
        ({"ended": NOW, "end": "interrupted"}, "Interrupted"),
        ({"host": "another machine"}, "Interrupted"),  # nobody holds the output
    ],
)
def test_a_run_whose_process_is_gone_is_interrupted(
    fields: dict[str, Any], state: str, tmp_path: Path, golden: Golden
) -> None:
    view = build_run([build_replica()], message="training", progress={"step": 5})
    run = read_run_folder(store_run(tmp_path, view, command="trainjob run job.yaml", **fields))
    assert run is not None
    assert run.view.state == state
    golden(run.view.message)
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
            if str(path).rstrip("/") == str(folder) and folder not in removed:
                removed.append(folder)
                shutil.rmtree(folder)
        return real(path)

    monkeypatch.setattr("os.scandir", scan)
    if sys.version_info >= (3, 13):  # whose paths have kept the function
        monkeypatch.setattr("glob._StringGlobber.scandir", staticmethod(scan))
    assert log_files(tmp_path) == {}
    assert not results_in(tmp_path).has_events
    assert results_in(tmp_path).checkpoints == ""
    assert removed == [logs / "replicas", tmp_path]


def test_the_models_in_an_output(tmp_path: Path) -> None:
    for name in (
        "best.keras",
        "best/epoch-3.weights.h5",
        "exported/saved_model.pb",
        "a/exported/saved_model.pb",
        "model/model.keras",
        "checkpoints/mine.keras",
        "logs/train/events.out.tfevents.1",
        "far/too/deep/one.keras",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert results_in(tmp_path).models == (
        "model",
        "a/exported",
        "best.keras",
        "best/epoch-3.weights.h5",
        "exported",
    )


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


# Whether a run has nothing left to do, by its record and its final marker.


FINAL = {"step": 440, "endedAt": 550, "jobUid": "u"}


EARLIER = {**FINAL, "jobUid": "other"}


@pytest.mark.parametrize(
    ("end", "marker", "is_finished"),
    [
        ("complete", FINAL, True),
        ("complete", None, True),  # a script without checkpoints
        ("interrupted", FINAL, True),  # by Ctrl-C while the evaluator worked
        ("", FINAL, True),  # killed then
        ("failed", FINAL, False),
        ("deleted", FINAL, False),
        ("interrupted", None, False),
        ("", None, False),
        ("complete", EARLIER, False),  # another job has trained here since
        ("interrupted", EARLIER, False),  # a longer training had begun
        ("complete", [], False),
        ("complete", {}, False),
    ],
)
def test_when_a_run_is_finished(end: Any, marker: Any, is_finished: bool, tmp_path: Path) -> None:
    run = Run(tmp_path, RunRecord(view=replace(build_run(), uid="u"), began=NOW, ended=NOW, end=end))
    assert not run.is_finished  # its output was removed
    (tmp_path / "checkpoints").mkdir()
    if marker is not None:
        (tmp_path / "checkpoints/final.json").write_text(json.dumps(marker))
    assert run.is_finished == is_finished


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--epochs", "25"],
        ["40", "0.02"],  # the script's own words
    ],
)
def test_what_is_said_of_a_finished_run(arguments: list[str], tmp_path: Path, golden: Golden) -> None:
    score = EvaluationResult.model_validate({"step": 440, "metrics": {"loss": 0.1, "accuracy": 0.989}})
    view = replace(build_run([build_replica(total_epochs=25)], evaluation=score), uid="u")
    request = Request(asked={"arguments": arguments})
    run = Run(tmp_path / "digits.2", RunRecord(view=view, began=NOW, ended=NOW, request=request))
    (run.folder / "checkpoints").mkdir(parents=True)
    (run.folder / "checkpoints/final.json").write_text(json.dumps(FINAL))
    golden(describe_finished(run, NOW + MINUTES))


MINUTES = timedelta(minutes=12)
