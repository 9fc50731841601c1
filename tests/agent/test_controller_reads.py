"""The controller keeps all that an agent of ours reports, and nothing that only a hostile one would."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from support.agents.worker_group import Simulation
from trainjob.api import TrainJobStatus
from trainjob.core.agent_reports import AgentReport, merge_notices, project_report
from trainjob.core.conditions import truncated
from trainjob_trainer.agent.messages import Join
from trainjob_trainer.agent.replica_agent import readable_report
from trainjob_trainer.agent.worker_group import build_fitting_report, build_report
from trainjob_trainer.contract import wire
from trainjob_trainer.contract.reports import LONGEST_NOTICE, MOST_NOTICES, Failure, Report
from trainjob_trainer.contract.restarts import RestartCounts

PROGRESS = Report(
    state="training",
    step=220,
    total_steps=440,
    epoch=10,
    total_epochs=20,
    loss=float("nan"),
    metrics={"accuracy": 0.97, "größe": float("inf"), "lr": 1e-3},
    examples_per_second=1234.5,
    step_seconds=0.05,
    work_seconds=0.04,
    input_seconds=0.01,
    global_batch=64,
    checkpoint_step=200,
    resumed_from=100,
    evaluated_batches=3,
    evaluation={"step": 200, "metrics": {"loss": 0.25}, "final": True},
    waiting_for_storage="cannot read /output",
    error={"reason": "Crashed", "message": "ValueError: boom\nin train.py"},
    notices=tuple(f"{n} {'ö' * 298}" for n in range(MOST_NOTICES)),
)
FAILURE = Failure(
    replica="worker-1",
    pod="digits-worker-1-ab12cd34",
    incarnation=2,
    attempt=7,
    reason="OutOfMemory",
    exit_code=137,
    signal=9,
    message="it was killed: Grüße \U0001f600",
    log_tail="Traceback…\n\tFile train.py\n" + 2000 * "\U0001f600",
    step=40,
    time=1e9,
)
REPLICAS = frozenset(["worker-0", "worker-1", "evaluator-0"])


def reported(*replicas: str) -> Simulation:
    """Return a worker group in which each of these replicas has reported every field."""
    simulation = Simulation({"worker": len(replicas), "evaluator": 1})
    simulation.gather()
    simulation.group.handle(Join(99, "evaluator-0", 1, "pod-e", "10.0.0.9:2222"), 0.0)
    report = readable_report({**PROGRESS.to_json(), "time": 1e9})
    for member in simulation.group.meeting.roster:
        member.report = report
    simulation.group.failure = FAILURE
    simulation.group.notices = list(PROGRESS.notices or ())
    return simulation


def through_the_wire(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report as it comes out at the other end."""
    frame = wire.Sealer(b"k", b"S").seal(report)
    wire.read_length(frame[: wire.LENGTH_BYTES], wire.largest_report(len(REPLICAS), len(REPLICAS)))
    return wire.Opener(b"k", b"S").open(frame[wire.LENGTH_BYTES :])


def test_all_notices_reach_the_status_whole() -> None:
    report = AgentReport.model_validate(through_the_wire(build_report(reported("worker-0").group, 5.0)))
    assert tuple(report.notices) == PROGRESS.notices
    assert {len(line) for line in report.notices} == {LONGEST_NOTICE}
    status = truncated(TrainJobStatus(notices=merge_notices((), report.notices)))
    assert status.notices == PROGRESS.notices


@pytest.mark.parametrize("build", [build_report, build_fitting_report])
def test_nothing_of_a_leading_agents_report_is_lost(build: Any) -> None:
    report = through_the_wire(build(reported("worker-0", "worker-1").group, 5.0))
    assert report["members"]["worker-0"]["report"]["error"]["message"].endswith("train.py")
    assert project_report(report, REPLICAS) == report
    assert AgentReport.model_validate(project_report(report, REPLICAS)).failure == FAILURE.bounded()


def test_what_the_version_before_reports_of_every_replica_is_kept_too() -> None:
    report = build_report(reported("worker-0", "worker-1").group, 5.0)
    report["members"]["worker-1"]["report"]["error"] = {"reason": "PeerLost", "message": "worker 0 is gone"}
    assert project_report(through_the_wire(report), REPLICAS) == report


def test_nothing_of_a_members_report_is_lost() -> None:
    for lost in (None, 12.5):
        report = {
            "type": "report",
            "role": "member",
            "replica": "worker-1",
            "pod": "digits-worker-1-ab12cd34",
            "incarnation": 2,
            "restarts": RestartCounts(attempt=3, counted=2, furthest_step=40).to_json(),
            "child": "running",
            "attempt": 3,
            "report": readable_report(PROGRESS.to_json()),
            "beatAge": 0.5,
            "stopped": False,
            "leaderLostSeconds": lost,
        }
        assert project_report(through_the_wire(report), REPLICAS) == report


@pytest.mark.parametrize("workers", [2, 64, 1000])
def test_a_report_fits_with_the_largest_progress_reports(workers: int) -> None:
    simulation = Simulation({"worker": workers})
    for index in range(1, workers):
        pod = f"a-job-with-rather-a-long-name-worker-{index}-ab12cd34"
        simulation.group.handle(Join(index, f"worker-{index}", 1, pod, "10.0.0.1:2222"), 0.0)
    simulation.group.handle(Join(0, "worker-0", 1, "w-0", "10.0.0.1:2222"), 0.0)
    for member in simulation.group.meeting.roster:
        member.report = readable_report({"state": "failed", "waitingForStorage": 3000 * "é"})
    simulation.group.failure = replace(FAILURE, message=500 * "\U0001f600", log_tail=2048 * "\U0001f600")
    report = build_fitting_report(simulation.group, 0.0)
    assert len(report["members"]) == workers
    frame = wire.TAG_BYTES + len(json.dumps(report, separators=(",", ":")))
    assert frame <= wire.largest_report(workers, workers)


def test_what_no_agent_of_ours_reports_is_not_kept() -> None:
    member = {"pod": "p" * 999, "incarnation": 1, "state": ["running"], "seconds": 1e999, "x": 1}
    failure = {
        "replica": "worker-0",
        "reason": "boom\x1b[31m",
        "logTail": 9999 * "é",
        "message": "a\nb\u202ec",
    }
    report = {
        "phase": "running" + 999 * "!",
        "attempt": 10**30,
        "world": {"worker": 2, "root": 1},
        "restarts": {"attempt": 2**62, "counted": -5, "more": {}},
        "failure": failure,
        "members": {"worker-0": member, "worker-7": member, "\x1b]0;title\x07": {}},
        "anything": [[]] * 100,
    }
    assert project_report(report, REPLICAS) == {
        "phase": "running" + 25 * "!",
        "attempt": None,
        "world": {"worker": 2},
        "restarts": RestartCounts(attempt=2**31 - 1).to_json(),
        "failure": Failure("worker-0", "", 0, 0, "Crashed", message="a bc", log_tail=2048 * "é").to_json(),
        "members": {"worker-0": {"pod": "p" * 253, "incarnation": 1, "state": "absent", "seconds": 0.0}},
    }
