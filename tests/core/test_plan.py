"""The life of a job, step by step, on a cluster in memory."""

from __future__ import annotations

from typing import Any

import pytest

from support.golden import Golden
from support.world.jobs import build_plain_job
from support.world.world import World
from trainjob.cluster import Refused
from trainjob.core.conditions import find_condition, is_true


def kinds(world: World) -> list[str]:
    return [write.rsplit("-", 1)[0] if " Pod " in write else write for write in world.cluster.writes]


async def test_a_job_from_start_to_end(golden: Golden) -> None:
    world = await World(build_plain_job()).started()
    assert world.status.state == "Running"
    assert world.status.worker is not None
    assert world.status.worker.summary == "2/2"
    world.cluster.report(world.pod("worker"), {"state": "finished", "step": 40})
    world.each(lambda pod: world.cluster.end_pod(pod, 0), "worker")
    await world.settle()
    assert world.status.state == "Evaluating"
    evaluation = {"step": 40, "metrics": {"accuracy": 0.98}, "final": True}
    world.cluster.report(world.pod("evaluator"), {"state": "finished", "evaluation": evaluation})
    world.cluster.end_pod(world.pod("evaluator"), 0)
    await world.settle()
    assert (world.status.state, world.status.worker.summary) == ("Complete", "2/2"), "all have trained"
    golden(world.status.message)
    assert world.status.evaluation is not None
    assert world.status.evaluation.metrics == {"accuracy": "0.98"}
    assert world.status.completion_time is not None
    assert kinds(world) == [
        "create Service digits",
        "create Pod digits-worker-0",
        "create Pod digits-worker-1",
        "create Pod digits-evaluator-0",
        "status TrainJob digits",
        "status TrainJob digits",
        "status TrainJob digits",
        "status TrainJob digits",
    ]
    assert [reason for reason, _ in world.cluster.events] == [
        "Created",
        "Started",
        "TrainingFinished",
        "Complete",
    ]


async def test_a_job_that_ended_before_all_its_steps_is_complete_and_has_no_time_left(golden: Golden) -> None:
    world = await World(build_plain_job(evaluator=False)).started()
    report = {"state": "finished", "step": 120, "totalSteps": 400, "stoppedEarly": "an old agent's"}
    world.cluster.report(world.pod("worker"), report)
    world.each(lambda pod: world.cluster.end_pod(pod, 0))
    await world.settle()
    assert world.status.state == "Complete"
    golden(world.status.message)
    assert world.status.progress is not None
    assert world.status.progress.eta is None


async def test_a_finished_job_stays_finished_after_any_edit() -> None:
    world = await World(build_plain_job(evaluator=False)).started()
    world.each(lambda pod: world.cluster.end_pod(pod, 0))
    await world.settle()
    ended = world.status
    world.edit(suspend=True)
    await world.settle()
    assert world.status.state == "Complete"
    assert world.status.completion_time == ended.completion_time
    assert world.status.observed_generation == 2
    assert {c.observed_generation for c in world.status.conditions} == {2}
    world.edit(worker={"replicas": "two"})
    await world.settle()
    assert world.status.state == "Complete"


async def test_an_evaluators_failure_touches_no_worker(golden: Golden) -> None:
    world = await World(build_plain_job(maxRestarts=1)).started()
    workers = [p["metadata"]["name"] for p in world.pods if "worker" in p["metadata"]["name"]]
    world.cluster.end_pod(world.pod("evaluator"), 1, message="bad metric")
    await world.settle()
    world.cluster.end_pod(world.pod("evaluator"), 1, message="bad metric")
    await world.pass_time(60)
    told = [message for reason, message in world.cluster.events if reason == "EvaluatorRestarted"]
    golden(*told, world.status.message)
    assert world.pod("evaluator")["metadata"]["labels"]["trainjob.dev/incarnation"] == "2"
    assert [p["metadata"]["name"] for p in world.pods if "worker" in p["metadata"]["name"]] == workers
    assert world.status.state == "Running"
    world.cluster.report(world.pod("worker"), {"state": "finished", "step": 40})
    world.each(lambda pod: world.cluster.end_pod(pod, 0), "worker")
    await world.settle()
    assert world.status.state == "Complete"
    golden(world.status.message)


async def test_an_evaluator_with_nothing_to_evaluate_may_end_before_the_training() -> None:
    world = await World(build_plain_job()).started()
    world.cluster.report(world.pod("evaluator"), {"state": "finished"})
    world.cluster.end_pod(world.pod("evaluator"), 0)
    await world.pass_time(60)
    assert world.status.state == "Running"
    assert world.pod("evaluator")["metadata"]["labels"]["trainjob.dev/incarnation"] == "1"
    world.each(lambda pod: world.cluster.end_pod(pod, 0), "worker")
    await world.settle()
    assert world.status.state == "Complete"
    assert [reason for reason, _ in world.cluster.events if "Evaluator" in reason] == []


async def test_the_evaluator_has_a_limited_time_after_training(golden: Golden) -> None:
    world = await World(build_plain_job(evaluator={"completionTimeoutSeconds": 30})).started()
    world.each(lambda pod: world.cluster.end_pod(pod, 0), "worker")
    await world.pass_time(29)
    assert world.status.state == "Evaluating"
    await world.pass_time(1)
    world.let_go()
    await world.settle()
    assert world.status.state == "Complete"
    golden(world.status.message)


async def test_suspend_and_resume() -> None:
    world = await World(build_plain_job()).started()
    world.edit(suspend=True)
    await world.settle()
    assert not is_true(world.status, "Suspended"), "pods are still going"
    world.let_go()
    await world.settle()
    assert is_true(world.status, "Suspended")
    assert world.pods == []
    world.edit(suspend=False)
    await world.started()
    assert world.status.state == "Running"
    assert world.status.attempt == 2
    assert not is_true(world.status, "Suspended")
    assert world.status.restarts.counted == 0


async def test_a_job_that_is_created_suspended_creates_nothing() -> None:
    world = World(build_plain_job(suspend=True))
    await world.settle()
    assert world.pods == []
    assert world.status.start_time is None
    world.edit(suspend=False)
    await world.started()
    assert world.status.attempt == 1


async def test_a_deadline_ends_the_job(golden: Golden) -> None:
    world = await World(build_plain_job(activeDeadlineSeconds=60)).started()
    await world.pass_time(60)
    world.let_go()
    await world.settle()
    assert world.status.state == "Failed"
    golden(world.status.message)


async def test_a_finished_job_goes_when_its_ttl_is_over() -> None:
    world = await World(build_plain_job(ttlSecondsAfterFinished=100, evaluator=False)).started()
    world.each(lambda pod: world.cluster.end_pod(pod, 0))
    assert (await world.settle()) is not None
    await world.pass_time(99)
    assert world.cluster.find("TrainJob", world.key) is not None
    await world.pass_time(1)
    assert world.cluster.find("TrainJob", world.key) is None
    assert world.pods == []


def end_beside_a_sidecar(world: World, pod: dict[str, Any], exit_code: int) -> None:
    """The pod's training container ends; another one runs on."""
    world.cluster.end_pod(pod, exit_code)
    statuses = world.cluster.at_node(pod, "node-1")["status"]["containerStatuses"]
    sidecar = {"name": "log-shipper", "state": {"running": {}}}
    world.cluster.change(pod, {"status": {"phase": "Running", "containerStatuses": [*statuses, sidecar]}})


def deadlines(world: World) -> dict[str, int | None]:
    return {
        pod["metadata"]["name"].rsplit("-", 1)[0]: pod["spec"].get("activeDeadlineSeconds")
        for pod in world.pods
    }


async def test_workers_that_ended_beside_an_evaluator_hold_nothing() -> None:
    world = await World(build_plain_job()).started()
    world.each(lambda pod: end_beside_a_sidecar(world, pod, 0), "worker")
    await world.settle()
    assert world.status.state == "Evaluating"
    assert deadlines(world) == {"digits-worker-0": 1, "digits-worker-1": 1, "digits-evaluator-0": None}
    end_beside_a_sidecar(world, world.pod("evaluator"), 0)
    await world.settle()
    assert world.status.state == "Complete"
    assert set(deadlines(world).values()) == {1}
    assert len([write for write in world.cluster.writes if write.startswith("patch Pod")]) == 3
    late = {"phase": "Failed", "reason": "DeadlineExceeded", "message": "Pod was active for too long"}
    world.each(lambda pod: world.cluster.change(pod, {"status": late}))
    before = world.status
    await world.pass_time(60)
    assert world.status == before
    assert len(world.pods) == 3, "they stay for their logs"


async def test_the_pods_of_a_failed_job_hold_nothing(golden: Golden) -> None:
    world = await World(build_plain_job(maxRestarts=0)).started()
    end_beside_a_sidecar(world, world.pod("worker", 1), 3)
    await world.settle()
    world.let_go()
    await world.pass_time(60)
    assert world.status.state == "Failed"
    golden(world.status.message)
    assert deadlines(world) == {"digits-worker-1": 1}


async def test_a_resize_restarts_training_with_the_new_number_of_workers() -> None:
    world = await World(build_plain_job()).started()
    world.edit(worker={"replicas": 3})
    await world.settle()
    world.let_go()
    await world.started()
    assert world.status.worker is not None
    assert world.status.worker.summary == "3/3"
    assert world.status.attempt == 2
    assert world.status.restarts.counted == 0


async def test_an_invalid_job_fails_with_every_error() -> None:
    job = build_plain_job(maxRestarts=-1)
    job["spec"]["worker"] = {"replicas": 0}
    world = World(job)
    await world.settle()
    assert world.status.state == "Failed"
    assert "spec.worker.replicas" in (world.status.message or "")
    assert "spec.maxRestarts" in (world.status.message or "")
    assert world.pods == []


async def test_a_service_of_another_owner_is_left_alone_and_reported() -> None:
    world = World(build_plain_job())
    world.cluster.put({"kind": "Service", "metadata": {"name": "digits", "namespace": "default"}})
    again = await world.settle()
    assert again is not None
    running = find_condition(world.status, "Running")
    assert running is not None
    assert running.reason == "ServiceConflict"
    assert world.pods == []


@pytest.mark.parametrize(
    ("claim", "pods"), [({"size": "1Gi"}, 0), ({"size": "1Gi", "retain": True}, 3), ({"claimName": "a"}, 3)]
)
async def test_a_claim_that_is_there_is_used_if_it_may_outlive_its_job(
    claim: dict[str, Any], pods: int
) -> None:
    world = World(build_plain_job(output={"claim": claim}))
    there = {"name": "digits-output", "namespace": "default"}
    world.cluster.put({"kind": "PersistentVolumeClaim", "metadata": there})
    await world.settle()
    running = find_condition(world.status, "Running")
    assert running is not None
    assert (running.reason == "PersistentVolumeClaimConflict", len(world.pods)) == (pods == 0, pods)


@pytest.mark.parametrize(
    ("reason", "state"), [("Forbidden", "Pending"), ("Invalid", "Failed"), ("BadRequest", "Failed")]
)
async def test_a_refused_pod_is_reported(reason: str, state: str, golden: Golden) -> None:
    world = World(build_plain_job())

    def refuse(operation: str, manifest: dict[str, Any]) -> Exception | None:
        pod = operation == "create" and manifest["kind"] == "Pod"
        return Refused(reason, "exceeded quota: gpus") if pod else None

    world.cluster.fault = refuse
    again = await world.settle()
    assert world.status.state == state
    golden(world.status.message)
    if state == "Pending":
        assert again is not None
        world.cluster.fault = lambda *_: None
        await world.pass_time(60)
        await world.started()
        assert world.status.state == "Running"


async def test_a_pod_that_cannot_start_says_why(golden: Golden) -> None:
    world = World(build_plain_job())
    await world.settle()
    world.cluster.hold_pod(world.pod("worker", 1), "ImagePullBackOff", "no such image")
    await world.settle()
    golden(world.status.message)
    running = find_condition(world.status, "Running")
    assert running is not None
    assert running.reason == "ImagePullBackOff"


async def test_progress_is_written_at_most_every_thirty_seconds() -> None:
    world = await World(build_plain_job(evaluator=False)).started()
    before = len(world.cluster.writes)
    for second in range(60):
        world.cluster.report(world.pod("worker"), {"step": second, "totalSteps": 100, "loss": 0.5})
        await world.pass_time(1)
    assert len(world.cluster.writes) - before == 3, "the first step at once, then every thirty seconds"
    progress = world.status.progress
    assert progress is not None
    assert progress.eta is not None
    assert progress.metrics == {"loss": "0.5"}


async def test_the_time_left_waits_for_the_speed_of_the_new_attempt() -> None:
    world = await World(build_plain_job(evaluator=False)).started()

    async def train(*steps: int) -> str | None:
        for step in steps:
            world.cluster.report(world.pod("worker"), {"step": step, "totalSteps": 1000})
            await world.pass_time(30)
        assert world.status.progress is not None
        return world.status.progress.eta

    assert await train(0, 300, 600) is not None
    world.cluster.end_pod(world.pod("worker", 1), 1)
    await world.settle()
    world.let_go()
    await world.pass_time(20)
    await world.started()
    assert await train(610) is None, "the time of the restart is no time of steps"
    assert await train(640, 670) is not None


@pytest.mark.parametrize("manager", ["kueue.x-k8s.io/multikueue", "trainjob.dev/trainjob-controller"])
async def test_a_job_of_another_controller_is_left_alone(manager: str) -> None:
    world = World(build_plain_job(managedBy=manager))
    await world.settle()
    assert bool(world.cluster.writes) == manager.startswith("trainjob.dev/")


async def test_a_job_being_deleted_gets_nothing_new() -> None:
    world = World(build_plain_job(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    await world.settle()
    assert world.cluster.writes == []


async def test_parameter_servers_are_stopped_when_the_chief_is_done() -> None:
    world = await World(build_plain_job(chief={}, ps={"replicas": 2}, evaluator=False)).started()
    world.cluster.end_pod(world.pod("chief"), 0)
    await world.settle()
    world.let_go()
    await world.settle()
    assert world.status.state == "Complete"


async def test_another_jobs_pods_of_the_same_name_are_not_ours() -> None:
    world = World(build_plain_job())
    stranger = {
        "kind": "Pod",
        "metadata": {
            "name": "digits-worker-0-00000000",
            "namespace": "default",
            "labels": {
                "trainjob.dev/job": "digits",
                "trainjob.dev/role": "worker",
                "trainjob.dev/index": "0",
                "trainjob.dev/incarnation": "1",
            },
            "ownerReferences": [{"uid": "an-earlier-job", "controller": True}],
        },
        "status": {"phase": "Failed"},
    }
    world.cluster.put(stranger)
    await world.settle()
    assert not any("00000000" in write for write in world.cluster.writes)
    assert len(world.pods) == 4


@pytest.mark.parametrize("report", [{"state": "finished", "step": 40}, {"state": "finished"}])
async def test_a_good_end_without_a_step_says_so_in_its_message_and_events(
    report: dict[str, object], golden: Golden
) -> None:
    world = await World(build_plain_job(evaluator=False)).started()
    world.cluster.report(world.pod("worker"), report)
    world.each(lambda pod: world.cluster.end_pod(pod, 0), "worker")
    await world.settle()
    assert world.status.state == "Complete"
    golden(world.status.message)
    assert world.cluster.events[-2:] == [
        (reason, world.status.message) for reason in ("TrainingFinished", "Complete")
    ]
