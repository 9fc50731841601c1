"""How a notebook shows a job."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from support.cli.stored_jobs import condition, stored_job
from trainjob.client.drawing import Cell, Lines, draw_curve, open_display, to_html
from trainjob.client.view import JobView, ReplicaView, current_metrics, read_job
from trainjob.core.agent_reports import read_report
from trainjob_trainer.contract.reports import Report

EVIL = "<script>alert(1)</script>\x1b[2J\"'&"


def view(state: str = "Running", **status: Any) -> JobView:
    return read_job(stored_job(state, message="training on 2 workers", **status))


def shown(*given: Any) -> str:
    return to_html(*given).replace("\N{NO-BREAK SPACE}", " ")


def progress(step: int, loss: str = "0.5") -> dict[str, Any]:
    return {"step": step, "totalSteps": 400, "eta": "3m20s", "metrics": {"loss": loss, "accuracy": "0.975"}}


def test_a_running_job_has_state_step_time_left_curve_workers_and_events() -> None:
    job = view(
        progress=progress(100),
        worker={"summary": "2/2"},
        evaluation={"step": 80, "metrics": {"loss": "0.6"}},
        conditions=[condition("Running", "all 2 workers run")],
    )
    html = shown(job, "namespace ml", {20: 0.9, 40: 0.7, 100: 0.5})
    for part in (
        "digits",
        "Running",
        "in namespace ml",
        "training on 2 workers",
        "step 100/400",
        "3m20s left",
        "loss 0.5  accuracy 97.5 %",
        "evaluation at step 80: loss 0.6",
        "2/2 workers ready",
        "03:04:05 Running: all 2 workers run",
        "request  train.py",
        "<polyline",
    ):
        assert part in html
    ElementTree.fromstring(html)  # noqa: S314 - our own, and well formed


def test_a_failed_job_has_its_first_failure() -> None:
    failure = {
        "rank": "worker-1",
        "node": "node-2",
        "step": 30,
        "reason": "Crashed",
        "exitCode": 1,
        "logTail": "a\nValueError: b",
    }
    html = shown(view("Failed", firstFailure=failure), "this machine", {})
    assert "first failure worker-1, exit code 1 (Crashed), at step 30, on node node-2" in html
    assert "ValueError: b" in html
    assert "what to do    " in html
    assert "svg" not in html


@pytest.mark.parametrize(
    "status",
    [
        {"state": EVIL},
        {"message": EVIL},
        {"progress": {**progress(1), "eta": EVIL, "metrics": {EVIL: "1", "loss": EVIL}}},
        {"evaluation": {"step": 1, "metrics": {EVIL: EVIL}}},
        {"worker": {"summary": EVIL}},
        {"conditions": [condition("Running", EVIL, EVIL)]},
        {
            "conditions": [condition("Failed", EVIL, EVIL)],
            "firstFailure": {"rank": EVIL, "node": EVIL, "reason": EVIL, "logTail": EVIL},
        },
    ],
)
def test_texts_of_pods_are_only_texts(status: dict[str, Any]) -> None:
    job = stored_job("Running")
    job["status"] |= status
    html = to_html(read_job(job), EVIL, {1: 1.0, 2: 2.0}, (EVIL,))
    assert "alert" in html
    assert "<script" not in html
    assert "\x1b" not in html
    ElementTree.fromstring(html)  # noqa: S314 - as above


def test_what_is_recorded_for_a_cell_is_not_displayed_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    displayed = list[Any]()
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *given: displayed.append(given))
    assert "Running" in to_html(view(), "namespace ml", {})
    assert displayed == []


def test_a_run_here_shows_the_figures_of_its_leading_replica() -> None:
    report = {"step": 120, "totalSteps": 400, "loss": 0.25, "metrics": {"mae": 0.1}}
    replicas = (
        ReplicaView("worker-0", "training", read_report(report)),
        ReplicaView("evaluator-0", "evaluating", Report(step=999)),
    )
    job = JobView(name="digits", replicas=replicas, status=view(progress=progress(100)).status)
    assert current_metrics(job) == {"loss": 0.25, "accuracy": 0.975, "mae": 0.1}
    html = re.sub(r"<[^>]+>", "", shown(job, "this machine", {}))
    assert "step 120/400" in html
    assert re.search(r"worker-0 +training +120/400 +0.2500\nevaluator-0 +evaluating +999", html)


@pytest.mark.parametrize(
    ("curve", "points"),
    [
        ({}, None),
        ({1: 1.0}, None),
        ({1: float("nan"), 2: 1.0}, None),
        ({1: 2.0, 2: 2.0}, "0.0,28.0 240.0,28.0"),
        ({10: 1.0, 0: 3.0, 5: float("inf"), 20: 2.0}, "0.0,0.0 120.0,56.0 240.0,28.0"),
    ],
)
def test_curves(curve: dict[int, float], points: str | None) -> None:
    svg = draw_curve(curve)
    assert (f'points="{points}"' in svg) if points else not svg


class FakeIPython:
    """Takes what a cell shows."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []
        self.updates: list[dict[str, str]] = []

    def display(self, bundle: dict[str, str], *, raw: bool, display_id: bool) -> FakeIPython:
        assert raw
        assert display_id
        self.shown.append(bundle)
        return self

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.updates.append(bundle)


def test_a_cell_is_updated_in_place() -> None:
    ipython, now = FakeIPython(), [0.0]
    cell = Cell("namespace ml", {}, ipython.display, lambda: now[0])
    cell.show(view(progress=progress(1, "0.9")))
    cell.show(view(progress=progress(2, "0.8")))  # too soon for figures alone
    now[0] = 1.0
    cell.show(view(progress=progress(3, "0.7")))
    cell.show(view("Restarting", progress=progress(3, "0.7")))
    cell.show(view("Complete", progress=progress(400, "0.1")))
    assert len(ipython.shown) == 1
    assert len(ipython.updates) == 3
    assert "step 1/400" in ipython.shown[0]["text/html"].replace("\N{NO-BREAK SPACE}", " ")
    assert "Restarting: training on 2 workers" in ipython.updates[1]["text/html"]
    assert "Complete" in ipython.updates[2]["text/plain"]
    assert 'points="0.0,0.0 120.0,28.0 240.0,56.0"' in ipython.updates[0]["text/html"]


def test_a_notice_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = open_display("this machine", {}, lambda: 0.0)
    for notices in ([], ["<trained> alone"], ["<trained> alone", "another rate"]):
        lines.show(view(notices=notices))
    printed = capsys.readouterr().err.splitlines()[1:]
    texts = ("<trained> alone", "another rate")
    assert printed == [f"trainjob: digits: notice: {text}" for text in texts]
    assert "notice  &lt;trained&gt; alone\nnotice  another rate" in shown(
        view(notices=texts), "this machine", {}
    )


def test_elsewhere_changes_are_lines_and_progress_comes_every_ten_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    lines = open_display("this machine", {}, lambda: now[0])
    assert isinstance(lines, Lines)
    for time, job in enumerate([view(progress=progress(step)) for step in range(1, 24)]):
        now[0] = float(time)
        lines.show(job)
    lines.show(view("Complete", progress=progress(400)))
    printed = capsys.readouterr().err.splitlines()
    running = "trainjob: digits: Running: training on 2 workers"
    assert [line.partition(", epoch")[0].partition(", 3m")[0] for line in printed] == [
        running,
        f"{running}, step 11 of 400",
        f"{running}, step 21 of 400",
        "trainjob: digits: Complete: training on 2 workers",
    ]
