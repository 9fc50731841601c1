from datetime import timedelta
from typing import Any

import pytest

from support.cli.program import NOW
from trainjob.client.view import read_run
from trainjob.cluster import Snapshot
from trainjob.core.names import Replica

JOB = {"metadata": {"name": "digits"}, "status": {"state": "Running", "message": "training on 2 workers"}}
REPLICAS = (Replica("worker", 0), Replica("evaluator", 0))


def _pod(role: str, state: dict[str, Any], *, incarnation: int = 1, deleting: bool = False) -> dict[str, Any]:
    labels = {"role": role, "index": "0", "incarnation": str(incarnation)}
    metadata: dict[str, Any] = {
        "name": f"digits-{role}-0-{incarnation}",
        "labels": {f"trainjob.dev/{key}": value for key, value in labels.items()},
    }
    if deleting:
        metadata["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    status = {
        "phase": "Running",
        "conditions": [{"type": "PodScheduled", "status": "True"}],
        "containerStatuses": [{"name": "trainer", "state": state}],
    }
    return {"metadata": metadata, "spec": {}, "status": status}


RUNNING = {"running": {"startedAt": "2026-01-02T03:04:05Z"}}


def _state(pod: dict[str, Any], report: dict[str, Any] | None = None) -> str:
    progress = {pod["metadata"]["name"]: report} if report else {}
    job = read_run(Snapshot(JOB, (pod,), progress=progress), REPLICAS, since=NOW, now=NOW)
    return job.replicas[0].state


@pytest.mark.parametrize(
    ("pod", "report", "expected"),
    [
        (_pod("worker", {"waiting": {"reason": "ContainerCreating"}}), None, "starting"),
        (_pod("worker", RUNNING), None, "running"),
        (_pod("worker", RUNNING), {"state": "training"}, "training"),
        (_pod("worker", RUNNING, deleting=True), {"state": "training"}, "stopping"),
        (_pod("worker", {"terminated": {"exitCode": 0}}), {"state": "training"}, "finished"),
        (_pod("worker", {"terminated": {"exitCode": 3}}), {"state": "training"}, "failed (3)"),
        (_pod("evaluator", RUNNING), None, "pending"),
    ],
)
def test_states(pod: dict[str, Any], report: dict[str, Any] | None, expected: str) -> None:
    assert _state(pod, report) == expected


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        ({"pod": "digits-worker-0-1", "state": "idle"}, "waiting"),
        ({"pod": "digits-worker-0-1", "state": "stopping"}, "stopping"),
        ({"pod": "digits-worker-0-1", "state": "running"}, "training"),
        ({"pod": "digits-worker-0-1", "state": "lost"}, "training"),
        ({"pod": "digits-worker-0-0", "state": "idle"}, "training"),
    ],
)
def test_what_the_agents_know_of_a_pod(member: dict[str, Any], expected: str) -> None:
    pod = _pod("worker", RUNNING)
    progress = {pod["metadata"]["name"]: {"state": "training"}}
    snapshot = Snapshot(JOB, (pod,), progress=progress, agent_report={"members": {"worker-0": member}})
    job = read_run(snapshot, REPLICAS, since=NOW, now=NOW)
    assert job.replicas[0].state == expected


def test_a_checkpoint_of_a_process_that_is_gone_is_remembered() -> None:
    job = {**JOB, "status": {"output": {"checkpointStep": 40}}}
    assert read_run(Snapshot(job), REPLICAS, since=NOW, now=NOW).checkpoint_step == 40


def test_a_view_of_everything() -> None:
    progress = {
        "digits-worker-0-1": {"state": "failed", "step": 3, "checkpointStep": 90},
        "digits-worker-0-2": {"state": "training", "step": 7, "totalSteps": 10, "checkpointStep": 5},
        "digits-evaluator-0-1": {"evaluation": {"step": 5, "metrics": {"accuracy": 0.5}}},
    }
    pods = (_pod("worker", RUNNING, incarnation=2), _pod("worker", RUNNING), _pod("evaluator", RUNNING))
    job = read_run(
        Snapshot(JOB, pods, progress=progress), REPLICAS, since=NOW, now=NOW + timedelta(seconds=9)
    )
    assert (job.name, job.state, job.message) == ("digits", "Running", "training on 2 workers")
    assert job.elapsed == timedelta(seconds=9)
    assert [replica.name for replica in job.replicas] == ["worker-0", "evaluator-0"]
    assert (job.replicas[0].report.step, job.replicas[0].pod) == (7, "digits-worker-0-2")
    assert job.evaluation is not None
    assert job.evaluation.metrics == {"accuracy": "0.5"}
    assert job.checkpoint_step == 90  # what an earlier pod saved is still there


def test_before_anything_has_happened() -> None:
    job = read_run(Snapshot({"metadata": {"name": "digits"}}), REPLICAS, since=NOW, now=NOW)
    assert (job.state, job.message, job.status.restarts.counted, job.evaluation) == ("Pending", "", 0, None)
    assert [replica.state for replica in job.replicas] == ["pending", "pending"]
