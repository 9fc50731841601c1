"""The leading agent's report to the controller, and its size."""

from __future__ import annotations

import json

from support.agents.worker_group import Simulation
from trainjob_trainer.agent.messages import Join
from trainjob_trainer.agent.worker_group import build_report
from trainjob_trainer.contract.wire import LARGEST_FRAME


def test_a_report() -> None:
    simulation = Simulation({"worker": 2, "evaluator": 1})
    simulation.group.handle(Join(9, "evaluator-0", 1, "pod-e", "10.0.0.9:2222"), 0.0)
    simulation.tick(5)
    report = build_report(simulation.group, simulation.now)
    assert report == {
        "type": "report",
        "role": "leader",
        "phase": "meeting",
        "phaseSeconds": 5.0,
        "attempt": 0,
        "world": {"worker": 2},
        "restarts": simulation.group.budget.counts.to_json(),
        "failure": None,
        "notices": [],
        "members": {
            "worker-0": _member("pod-worker-0-1", 1, "idle"),
            "worker-1": _member("", 0, "absent"),
            "evaluator-0": _member("pod-e", 1, "idle"),
        },
    }


def _member(pod: str, incarnation: int, state: str) -> dict[str, object]:
    return {"pod": pod, "incarnation": incarnation, "state": state, "seconds": 5.0, "report": None}


def test_the_writers_metrics_are_the_jobs() -> None:
    simulation = Simulation({"worker": 2})
    simulation.gather()
    for replica in ("worker-0", "worker-1"):
        simulation.progress(replica, step=3, metrics={"accuracy": 0.5})
    members = build_report(simulation.group, 0.0)["members"]
    assert members["worker-0"]["report"] == {"state": "training", "step": 3, "metrics": {"accuracy": 0.5}}
    assert members["worker-1"]["report"] == {"state": "training", "step": 3}
    members = build_report(simulation.group, 0.0, whole=False)["members"]
    assert members["worker-0"]["report"] is not None
    assert members["worker-1"]["report"] is None


def test_notices_of_all_replicas_and_attempts_are_kept_once() -> None:
    simulation = Simulation({"worker": 2})
    simulation.gather()
    simulation.progress("worker-0", step=3, notices=["trained alone"])
    simulation.progress("worker-1", step=3, notices=["trained alone", "too few rows", 9 * ["x"], "y" * 999])
    simulation.end_child("worker-1", 1)
    simulation.settle()
    simulation.progress("worker-0", step=3, notices=[f"fit {n}" for n in range(9)])
    simulation.progress("worker-1", step=3, notices="no list")
    report = build_report(simulation.group, simulation.now)
    assert report["notices"][:2] == ["trained alone", "too few rows"]
    assert report["notices"][3:] == [f"{150 * 'y'}…{149 * 'y'}", "fit 0", "fit 1", "fit 2", "fit 3"]
    assert "notices" not in report["members"]["worker-1"]["report"]


def test_the_next_attempt_begins_without_the_reports_of_the_one_before() -> None:
    """Its first one shows where training continues (`status.restarts.stepsLost`)."""
    simulation = Simulation({"worker": 2})
    simulation.gather()
    simulation.progress("worker-0", step=12)
    simulation.end_child("worker-1", 1)
    simulation.settle()
    report = build_report(simulation.group, simulation.now)
    assert (report["phase"], report["failure"]["attempt"], report["restarts"]["attempt"]) == ("running", 1, 2)
    assert report["members"]["worker-0"]["report"] is None


def test_many_replicas_fit() -> None:
    simulation = Simulation({"worker": 2000})
    for index in range(1, 2000):
        pod = f"a-job-with-rather-a-long-name-worker-{index}-ab12cd34"
        simulation.group.handle(Join(index, f"worker-{index}", 1, pod, "10.0.0.1:2222"), 0.0)
    report = build_report(simulation.group, 0.0, whole=False)
    assert len(json.dumps(report)) < LARGEST_FRAME
