"""What the web page gets of a job."""

from __future__ import annotations

import asyncio
import json
import math
from types import SimpleNamespace
from typing import Any

import pytest

from support.cli.program import NOW, build_replica, build_run, condition
from support.cli.stored_jobs import ended, stored_job, stored_pod
from trainjob.client.history import thin_out
from trainjob.client.page import JobHistory
from trainjob.client.view import JobView, read_job
from trainjob.client.web.live_jobs import LiveJob, figures_of, read_event
from trainjob.cluster.protocol import PostedEvent
from trainjob.core.agent_reports import EvaluationResult

EVIL = "<script>\x1b[2J\u202e"
AT = "2026-01-02T03:04:05Z"


def seen(job: JobView) -> LiveJob:
    live = LiveJob("run/1", SimpleNamespace(place="this machine"), job, NOW)
    live.see(job)
    return live


def details(job: JobView, **objects: dict[str, Any]) -> dict[str, Any]:
    there = SimpleNamespace(**{"pods": {}, "events": {}, "problems": {}, **objects}) if objects else None
    found = asyncio.run(seen(job).details(there))
    json.dumps(found, allow_nan=False)
    return found


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (
            build_run([build_replica(step=110, total_steps=440)], message="training"),
            {"steps": "110/440", "share": 0.25, "state": "Running", "tone": "busy", "message": "training"},
        ),
        (build_run(state=None), {"steps": "", "share": None, "state": "Pending", "tone": "idle"}),
        (
            read_job(stored_job("Complete", evaluation={"step": 9, "metrics": {"loss": "1", "auc": "nan"}})),
            {"score": "auc nan", "state": "Complete", "tone": "good"},
        ),
        (read_job(stored_job("Failed", progress={"step": 9})), {"steps": "9", "share": None, "tone": "bad"}),
        (
            build_run([build_replica(step=9, total_steps=0)], state=EVIL, message=EVIL),
            {"state": "<script>", "message": "<script>", "share": None},
        ),
    ],
)
def test_a_row(job: JobView, expected: dict[str, Any]) -> None:
    row = seen(job).row
    assert {name: row[name] for name in expected} == expected
    assert (row["key"], row["name"], row["began"]) == ("run/1", "digits", NOW.isoformat())


def test_a_run_has_figures_replicas_and_events() -> None:
    events = (PostedEvent(NOW, "Normal", "Created", "starting"), PostedEvent(NOW, "Warning", EVIL, EVIL))
    job = build_run(
        [
            build_replica(step=110, total_steps=440, loss=0.5),
            build_replica("worker-1", "failed (1)", exit_code=1),
        ],
        evaluation=EvaluationResult(step=100, metrics={"accuracy": 0.9}),
        checkpoint_step=100,
        events=events,
    )
    found = details(job)
    assert ("progress", "step 110 of 440, loss 0.5") in found["facts"]
    assert ("evaluation", "step 100: accuracy 90.0 %") in found["facts"]
    assert [(each["name"], each["state"], each["failed"]) for each in found["replicas"]] == [
        ("worker-0", "training", False),
        ("worker-1", "failed (1)", True),
    ]
    assert found["replicas"][0] | {"steps": "110/440", "detail": "loss 0.5000"} == found["replicas"][0]
    assert [(each["warning"], each["reason"]) for each in found["events"]] == [
        (False, "Created"),
        (True, "<script>"),
    ]
    assert found["end"] == []


def test_a_job_in_a_cluster_has_its_pods() -> None:
    job = read_job(stored_job(progress={"step": 3, "stepSeconds": {"worker-0": 0.25}}))
    pods = {f"{index}": stored_pod(index=index, container=ended(index)) for index in (0, 1)}
    found = details(job, pods=pods, problems={"events": EVIL})
    assert found["replicas"] == [
        {
            "name": "worker-0",
            "state": "finished",
            "steps": "0.25 s a step",
            "detail": "node node-1",
            "failed": False,
        },
        {"name": "worker-1", "state": "failed (1)", "steps": "", "detail": "node node-1", "failed": True},
    ]
    assert found["notes"][1:] == ["<script>"]


def test_a_failed_job_says_what_failed_and_what_to_do() -> None:
    failure = {"rank": "worker-1", "reason": "Crashed", "exitCode": 1, "logTail": "ValueError: boom"}
    job = build_run(state="Failed", conditions=[condition("Failed", "Crashed", "boom")], firstFailure=failure)
    end = "\n".join(details(job)["end"])
    for part in ("digits failed", "first failure worker-1", "| ValueError: boom", "what to do"):
        assert part in end


def test_curves_are_figures_with_training_and_validation() -> None:
    curves = {
        "examples_per_second": {1: 9.0},
        "accuracy": {1: 0.5, 2: math.nan, 3: 0.75},
        "val_loss": {2: 0.5},
        "val_accuracy": {2: 0.625},
        "loss": {1: 1.0, 3: 0.25},
    }
    figures = figures_of(curves)
    assert [(each["name"], each["percent"]) for each in figures] == [
        ("loss", False),
        ("accuracy", True),
        ("examples_per_second", False),
    ]
    assert figures[1]["series"] == [
        {"label": "training", "points": [(1, 0.5), (3, 0.75)]},
        {"label": "validation", "points": [(2, 0.625)]},
    ]


def test_other_runs_are_beside_the_series_of_a_metric_that_the_run_has_too() -> None:
    curves = {"loss": {1: 1.0}, "val_loss": {1: 2.0}}
    other = {"loss": {1: 3.0}, "lr": {1: 0.1}}
    figures = figures_of(
        curves, [("digits.1\x1b[2J", {**curves, "val_loss": {1: math.nan}}), ("digits.2", other)]
    )
    assert [(each["name"], each["series"]) for each in figures] == [
        (
            "loss",
            [
                {"label": "training", "points": [(1, 1.0)]},
                {"label": "validation", "points": [(1, 2.0)]},
                {"label": "digits.1", "other": 0, "points": [(1, 1.0)]},
                {"label": "digits.2", "other": 1, "points": [(1, 3.0)]},
            ],
        )
    ]


def test_a_long_curve_keeps_its_ends_and_its_peaks() -> None:
    curve = dict.fromkeys(range(10000), 1.0) | {5_001: 9.0, 5_003: -9.0, 7_000: math.inf}
    shown = thin_out(curve, 100)
    assert len(shown) <= 110
    assert shown == sorted(shown)
    assert {(0, 1.0), (9_999, 1.0), (5_001, 9.0), (5_003, -9.0)} <= set(shown)
    assert thin_out({3: 1.0, 5: 2.0}, 100) == [(3, 1.0), (5, 2.0)]


def test_states_become_curves() -> None:
    samples = JobHistory()
    for step, loss, scored in (
        (10, "0.9", None),
        (20, "0.8", 10),
        (20, "0.8", 10),
        (30, "0.7", 20),
        (21, "nan", 20),
    ):
        evaluation = {"evaluation": {"step": scored, "metrics": {"loss": f"0.{scored}"}}} if scored else {}
        samples.observe(
            read_job(stored_job(progress={"step": step, "metrics": {"loss": loss}}, **evaluation))
        )
    loss = samples.curves["loss"]
    assert list(loss) == [10, 20, 21]  # training went back from 30
    assert math.isnan(loss.pop(21))
    assert samples.curves == {"loss": {10: 0.9, 20: 0.8}, "val_loss": {10: 0.1, 20: 0.2}}
    samples.observe(JobView(name="digits"))
    for step in range(100, 5_000):
        samples.observe(read_job(stored_job(progress={"step": step, "metrics": {"loss": "0.5"}})))
    assert len(samples.curves["loss"]) <= 4_000


def test_a_finished_jobs_curves_are_those_of_its_status() -> None:
    samples = JobHistory()
    last = {"step": 40, "metrics": {"loss": "0.25", "accuracy": "0.5"}}
    samples.observe(read_job(stored_job(progress=last)))
    curves = {"loss": "10:2.5 20:1 40:0.25", "val_loss": "20:1.5", "evil\x1b[31m": "1:1", "text": "oops"}
    samples.observe(read_job(stored_job("Complete", progress=last, curves=curves)))
    assert samples.curves == {
        "loss": {10: 2.5, 20: 1.0, 40: 0.25},
        "val_loss": {20: 1.5},
        "accuracy": {40: 0.5},
    }


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (
            {"type": "Warning", "reason": "R", "message": "m", "count": 3, "lastTimestamp": AT},
            PostedEvent(NOW, "Warning", "R", "m (3 times)"),
        ),
        (
            {"reason": "R", "message": "m", "count": 1, "eventTime": AT},
            PostedEvent(NOW, "", "R", "m"),
        ),
        ({"metadata": {"creationTimestamp": AT}}, PostedEvent(NOW, "", "", "")),
    ],
)  # fmt: skip
def test_events_of_a_cluster(manifest: dict[str, Any], expected: PostedEvent) -> None:
    assert read_event(manifest) == expected
