"""How a job on a cluster is shown: its row, its description, its end and its progress."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest

from support.cli.program import build_replica, build_run
from support.cli.stored_jobs import RUNNING, condition, ended, stored_job, stored_pod
from support.golden import Golden
from trainjob.cli.get import JobTable
from trainjob.cli.screen import ProgressLine
from trainjob.client.job_logs import own_pods
from trainjob.client.page import describe_job, layout
from trainjob.client.presenter import describe_deletion, describe_end, describe_progress, results_on_cluster
from trainjob.client.view import read_job

NOW = datetime(2026, 1, 2, 4, 4, 5, tzinfo=UTC)
START, END = "2026-01-02T03:04:05Z", "2026-01-02T03:05:10Z"
PROGRESS = {
    "step": 120,
    "totalSteps": 440,
    "eta": "2m",
    "examplesPerSecond": 1250.0,
    "metrics": {"loss": "0.5"},
}
FIRST = {
    "pod": "digits-worker-1-1",
    "node": "node-7",
    "rank": "worker-1",
    "reason": "Crashed",
    "exitCode": 1,
    "step": 30,
    "logTail": "Traceback\nValueError: \x1b[31mboom\x1b[0m",
}


def end(job: dict[str, Any]) -> tuple[str, ...]:
    return describe_end(read_job(job), results_on_cluster(read_job(job)))


def row(job: dict[str, Any], *, wide: bool = False, namespaces: bool = False) -> tuple[str, ...]:
    return JobTable(wide=wide, namespaces=namespaces).rows([read_job(job)], NOW)[0]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (stored_job("Pending"), ("digits", "Pending", "", "", "", "0", "1h")),
        (
            stored_job(
                worker={"summary": "2/2"}, progress=PROGRESS, restarts={"counted": 1, "notCounted": 2}
            ),
            ("digits", "Running", "2/2", "120/440", "2m", "1", "1h"),
        ),
        (stored_job(progress={"step": 7}), ("digits", "Running", "", "7", "", "0", "1h")),
        # What is over needs no time any more.
        (stored_job("Failed", progress=PROGRESS), ("digits", "Failed", "", "120/440", "", "0", "1h")),
    ],
)
def test_a_row(job: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert row(job) == expected


def test_a_job_that_is_being_deleted() -> None:
    job = stored_job()
    job["metadata"]["deletionTimestamp"] = START
    assert row(job)[1] == "Terminating"


def test_more_columns() -> None:
    job = stored_job(message="training on\n2 workers")
    assert row(job, wide=True, namespaces=True)[0] == "default"
    assert row(job, wide=True)[-1] == "training on 2 workers"


def test_columns_are_aligned_and_nothing_is_a_dash() -> None:
    assert list(layout([("NAME", "STATE"), ("digits", ""), ("a", "Running")])) == [
        "NAME     STATE",
        "digits   -",
        "a        Running",
    ]
    assert list(layout([("a", "b")], (6, 7))) == ["a        b"]


def test_a_picture_of_everything(golden: Golden) -> None:
    job = stored_job(
        message="training on 2 workers",
        startTime=START,
        worker={"summary": "2/2"},
        progress={**PROGRESS, "epoch": 3},
        output={"path": "/output/digits", "checkpointStep": 100},
        evaluation={"step": 100, "metrics": {"accuracy": "0.975"}},
        restarts={"counted": 1, "notCounted": 2},
        attempt=4,
        notices=["trained alone"],
        conditions=[condition("Running", "2 workers run", "AllRunning")],
        firstFailure=FIRST,
    )
    pods = own_pods(
        [
            stored_pod(container=RUNNING, conditions=[{"type": "Ready", "status": "True"}]),
            stored_pod("worker", 1, container=ended(3)),
            stored_pod("evaluator", container={"waiting": {"reason": "ImagePullBackOff", "message": "no"}}),
        ],
        "uid-of-digits",
    )
    golden(*describe_job(read_job(job), pods, NOW))


def test_a_run_here_shows_its_reports_which_are_newer_than_its_status(golden: Golden) -> None:
    workers = [build_replica(step=5, total_steps=9, loss=0.5), build_replica("worker-1", "starting")]
    golden(*describe_job(build_run(workers, progress={**PROGRESS, "step": 3}), (), NOW))


def test_restarts_that_count_no_more() -> None:
    job = stored_job(restarts={"counted": 1, "reset": 4})
    assert "  restarts      1 of 3, 4 reset by later progress" in describe_job(read_job(job), (), NOW)


@pytest.mark.parametrize(("state", "is_said"), [("Running", True), ("Complete", False)])
def test_who_waits_for_data(state: str, is_said: bool) -> None:
    progress = {"step": 1, "stepSeconds": {"worker-0": 0.2}, "inputSeconds": {"worker-0": 0.1}}
    lines = describe_job(read_job(stored_job(state, progress=progress)), (), NOW)
    line = "  input         worker 0 waits for its data for 50 % of a step: a faster input pipeline makes "
    assert any(each.startswith(line) for each in lines) is is_said


def test_a_picture_of_a_new_job(golden: Golden) -> None:
    golden(*describe_job(read_job(stored_job("Pending")), (), NOW))


def test_a_complete_job(golden: Golden) -> None:
    job = stored_job(
        "Complete",
        message="training has finished",
        startTime=START,
        completionTime=END,
        output={"path": "/output/digits", "checkpointStep": 440},
        evaluation={"step": 440, "metrics": {"accuracy": "0.975"}},
        firstFailure=FIRST,  # of a restart, long forgiven
    )
    golden(*end(job))


def test_a_complete_job_names_only_what_there_is() -> None:
    lines = end(stored_job("Complete", output={"path": "/output/digits"}))
    assert not [line for line in lines if "checkpoints" in line or "model" in line]


def test_a_complete_job_without_an_evaluation() -> None:
    job = stored_job("Complete")
    assert "  evaluation    none was reported" in end(job)
    job["spec"]["evaluator"] = {"replicas": 0}
    assert end(job) == ("digits is complete",)


def test_a_failed_job(golden: Golden) -> None:
    job = stored_job(
        "Failed", message="worker 1 crashed", startTime=START, completionTime=END, firstFailure=FIRST
    )
    golden(*end(job))


def test_a_job_that_failed_without_a_replica(golden: Golden) -> None:
    job = stored_job("Failed", conditions=[condition("Failed", "no such image", "InvalidTemplate")])
    golden(*end(job))


def test_a_job_that_was_deleted(golden: Golden) -> None:
    job = read_job(stored_job(message="training on 2 workers"))
    golden(describe_deletion("digits", job), describe_deletion("digits", None, replaced=True))


@pytest.mark.parametrize(
    "job",
    [
        stored_job("Pending"),
        stored_job(message="training on 2 workers", progress=PROGRESS),
        stored_job("Complete", message="done", progress=PROGRESS),
    ],
)
def test_how_far_it_is(job: dict[str, Any], golden: Golden) -> None:
    golden(describe_progress(read_job(job)))


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "redraws"), [({"TERM": "dumb"}, False), ({"TERM": "xterm", "NO_COLOR": "1"}, True)]
)
def test_a_terminal_that_can_not_redraw_gets_lines(
    environment: dict[str, str], redraws: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", Terminal())
    ProgressLine().problem("no answer")
    assert sys.stderr.getvalue() == ("\r\x1b[Kno answer" if redraws else "trainjob: no answer\n")
