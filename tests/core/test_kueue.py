"""The life of a job in a queue of Kueue, step by step, on a cluster in memory."""

from __future__ import annotations

from typing import Any

import pytest

from support.golden import Golden
from support.world.kueue import QueueWorld, build_queued_job
from trainjob.api.status import StateSeconds
from trainjob.cluster import AlreadyExists, Refused


def created(world: QueueWorld) -> set[str]:
    """Return the kinds of objects that were created for the job."""
    return {write.split()[1] for write in world.cluster.writes if write.startswith("create")}


async def finish(world: QueueWorld, *, exit_code: int = 0) -> None:
    world.each(lambda pod: world.cluster.end_pod(pod, exit_code))
    await world.settle()


async def test_a_job_has_nothing_but_a_workload_before_it_is_admitted(golden: Golden) -> None:
    world = QueueWorld()
    await world.settle()
    assert world.status.state == "Queued"
    golden(world.status.message)
    why = "couldn't assign flavors to pod set worker: insufficient unused quota for cpu, 1 more needed"
    world.tell(("QuotaReserved", False, "WaitingForQuota", why))
    await world.pass_time(3600)
    golden(world.status.message)
    assert created(world) == {"Workload"}
    assert world.status.start_time is None
    await world.admit()
    assert world.status.start_time == world.now
    assert (world.status.state, len(world.pods)) == ("Pending", 3)
    assert world.status.state_seconds.queued == 3600
    events = [reason for reason, _ in world.cluster.events]
    assert events == ["Queued", "Admitted", "Created"]


async def test_a_job_that_names_no_queue_has_no_workload() -> None:
    world = QueueWorld(build_queued_job() | {"metadata": {"name": "digits", "namespace": "default"}})
    await world.settle()
    assert (world.status.state, created(world)) == ("Pending", {"Service", "Pod"})


@pytest.mark.parametrize(("kueue", "state"), [("", "Queued"), (None, "Pending")])
async def test_without_kueue_a_job_waits_with_a_sentence_but_not_on_one_machine(
    kueue: str | None, state: str, golden: Golden
) -> None:
    world = QueueWorld(kueue=kueue)
    await world.settle()
    assert world.status.state == state
    assert "Workload" not in created(world)
    if state == "Queued":
        golden(world.status.message)


async def test_a_controller_that_lost_kueue_leaves_a_running_job_alone() -> None:
    world = await QueueWorld().started()
    world.settings = QueueWorld(kueue="").settings
    world.restart_controller()
    await world.settle()
    assert (world.status.state, len(world.pods)) == ("Running", 3)


async def test_an_evicted_job_gives_its_quota_back_when_its_pods_have_ended_and_resumes(
    golden: Golden,
) -> None:
    world = await QueueWorld().started()
    assert world.condition("PodsReady") == ("True", "Started")
    await world.evict()
    assert world.status.state == "Queued"
    golden(world.status.message)
    assert all("deletionTimestamp" in pod["metadata"] for pod in world.pods)
    assert world.condition("QuotaReserved") == ("True", "QuotaReserved")
    world.let_go()
    await world.settle()
    assert world.condition("QuotaReserved") == ("False", "Pending")
    assert world.condition("Admitted") == ("False", "NoReservation")
    assert world.condition("Requeued") == ("True", "Preempted")
    assert world.condition("PodsReady") == ("False", "WaitForStart")
    assert "admission" not in world.workload["status"]
    assert world.pods == []
    await world.admit()
    world.each(world.cluster.run_pod)
    await world.settle()
    restarts = world.status.restarts
    assert (restarts.counted, restarts.not_counted) == (0, 0)
    assert world.status.state == "Running"
    golden(world.status.message)
    golden(*(message for reason, message in world.cluster.events if reason == "Evicted"))


async def test_an_eviction_for_another_reason_is_not_requeued_at_once() -> None:
    world = await QueueWorld().started()
    await world.evict("PodsReadyTimeout")
    world.let_go()
    await world.settle()
    assert world.condition("Requeued") == ("False", "PodsReadyTimeout")


async def test_a_deadline_does_not_run_while_a_job_is_queued() -> None:
    world = await QueueWorld(build_queued_job(activeDeadlineSeconds=100)).started()
    await world.pass_time(60)
    await world.evict()
    world.let_go()
    await world.pass_time(1000)
    assert world.status.state == "Queued"
    await world.admit()
    await world.pass_time(99)
    assert world.status.state == "Pending"
    await world.pass_time(2)
    assert world.status.state == "Failing"


@pytest.mark.parametrize(
    ("exit_code", "state", "reason"), [(0, "Complete", "Succeeded"), (1, "Failed", "Failed")]
)
async def test_the_workload_of_a_job_that_ends_is_finished_and_has_no_finalizer(
    exit_code: int, state: str, reason: str
) -> None:
    world = await QueueWorld(build_queued_job(maxRestarts=0)).started()
    await finish(world, exit_code=exit_code)
    assert world.status.state == state
    assert world.condition("Finished") == ("True", reason)
    assert world.workload["metadata"]["finalizers"] == []


async def test_a_job_that_fails_keeps_its_quota_until_its_pods_have_ended() -> None:
    world = await QueueWorld(build_queued_job(maxRestarts=0)).started()
    world.cluster.end_pod(world.pod("worker"), 1)
    await world.settle()
    assert (world.status.state, world.condition("Finished")) == ("Failing", None)
    world.let_go()
    await world.settle()
    assert (world.status.state, world.condition("Finished")) == ("Failed", ("True", "Failed"))


async def test_quota_of_the_workers_is_free_while_the_evaluator_scores() -> None:
    world = await QueueWorld().started()
    world.each(lambda pod: world.cluster.end_pod(pod, 0), "worker")
    await world.settle()
    assert world.status.state == "Evaluating"
    assert world.workload["status"]["reclaimablePods"] == [{"name": "worker", "count": 2}]
    assert world.condition("PodsReady") == ("True", "Started")
    await world.evict()
    world.let_go()
    await world.settle()
    assert world.workload["status"]["reclaimablePods"] == [{"name": "worker", "count": 2}]
    await world.admit({"worker": 0})
    assert world.status.state == "Evaluating"
    world.cluster.end_pod(world.pod("evaluator"), 0)
    await world.settle()
    assert world.status.state == "Complete"


async def test_a_suspended_job_is_inactive_and_waits_again_when_it_is_resumed() -> None:
    world = await QueueWorld().started()
    world.edit(suspend=True)
    await world.settle()
    assert world.workload["spec"]["active"] is False
    await world.evict("Deactivated", "The workload is deactivated")
    assert world.condition("QuotaReserved") == ("True", "QuotaReserved")
    world.let_go()
    await world.settle()
    assert world.status.state == "Suspended"
    assert world.condition("QuotaReserved") == ("False", "Pending")
    world.edit(suspend=False)
    await world.settle()
    assert world.workload["spec"]["active"] is True
    assert (world.status.state, world.pods) == ("Queued", [])
    await world.admit()
    assert (world.status.state, len(world.pods)) == ("Pending", 3)


async def test_a_job_that_is_suspended_from_the_start_asks_for_nothing() -> None:
    world = QueueWorld(build_queued_job(suspend=True))
    await world.settle()
    assert (world.status.state, created(world)) == ("Suspended", set())


async def test_a_workload_that_kueue_deactivated_is_left_so_with_a_sentence(golden: Golden) -> None:
    world = await QueueWorld().started()
    world.cluster.change(world.workload, {"spec": {"active": False}})
    await world.evict("DeactivatedDueToRequeuingLimitExceeded", "exceeded the number of retries")
    world.let_go()
    await world.pass_time(60)
    assert world.workload["spec"]["active"] is False
    golden(world.status.message)


async def test_fewer_workers_are_admitted_and_trained_on(golden: Golden) -> None:
    world = QueueWorld(build_queued_job(worker={"replicas": 4, "minReplicas": 2}, restartStrategy="InPlace"))
    await world.settle()
    await world.admit({"worker": 3})
    assert world.status.worker is not None
    assert (world.status.worker.size, world.status.attempt) == (3, 1)
    assert len(world.pods) == 4
    world.each(world.cluster.run_pod)
    await world.pass_time(30)
    golden(world.status.message)
    assert "reclaimablePods" not in world.workload["status"]


async def test_more_workers_than_were_admitted_wait_for_the_next_admission(golden: Golden) -> None:
    world = await QueueWorld().started()
    world.edit(worker={"replicas": 3})
    await world.pass_time(60)
    assert (world.status.state, len(world.pods)) == ("Running", 3)
    golden(world.status.message)
    await world.evict()
    world.let_go()
    await world.settle()
    assert [pods["count"] for pods in world.workload["spec"]["podSets"]] == [3, 1]
    await world.admit()
    assert len(world.pods) == 4


async def test_quota_of_workers_that_are_scaled_down_is_free_and_not_taken_again() -> None:
    world = await QueueWorld(build_queued_job(workers=3)).started()
    world.edit(worker={"replicas": 2})
    await world.settle()
    world.let_go()
    await world.settle()
    assert world.workload["status"]["reclaimablePods"] == [{"name": "worker", "count": 1}]
    world.edit(worker={"replicas": 3})
    await world.settle()
    assert world.workload["status"]["reclaimablePods"] == [{"name": "worker", "count": 1}]
    assert len([pod for pod in world.pods if "worker" in pod["metadata"]["name"]]) == 2


async def test_pods_that_are_placed_by_topology_wait_at_kueues_gate() -> None:
    world = QueueWorld()
    await world.settle()
    await world.admit(topologyAssignment={"levels": ["rack"]})
    gates = [pod["spec"].get("schedulingGates") for pod in world.pods]
    assert gates == [[{"name": "kueue.x-k8s.io/topology"}]] * 3


async def test_a_workload_that_somebody_deletes_takes_the_pods_with_it_and_is_written_again() -> None:
    world = await QueueWorld().started()
    first = world.workload["metadata"]["uid"]
    world.cluster.change(world.workload, {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    await world.settle()
    assert world.status.state == "Queued"
    assert world.workload["metadata"]["uid"] == first
    world.let_go()
    await world.settle()
    assert world.workload["metadata"]["uid"] != first
    await world.admit()
    assert len(world.pods) == 3


async def test_a_job_that_leaves_its_queue_trains_without_a_workload() -> None:
    world = await QueueWorld().started()
    world.cluster.change(
        world.cluster.job(world.key), {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": None}}}
    )
    await world.settle()
    assert world.cluster.workload(world.key) is None
    assert (world.status.state, len(world.pods)) == ("Running", 3)


async def test_what_still_waits_is_in_the_message(golden: Golden) -> None:
    world = QueueWorld(build_queued_job({"kueue.x-k8s.io/priority-class": "urgent"}))
    await world.settle()
    golden(world.status.message)
    world.add("WorkloadPriorityClass", "urgent", value=9)
    await world.pass_time(20)
    assert world.workload["spec"]["priority"] == 9
    checks = [{"name": "budget", "state": "Pending", "message": "asking finance"}]
    world.tell(("QuotaReserved", True, "QuotaReserved", ""), admissionChecks=checks)
    await world.settle()
    golden(world.status.message)


async def test_the_position_in_the_queue_is_in_the_message_while_it_is_known(golden: Golden) -> None:
    world = QueueWorld()
    await world.settle()
    world.tell(("QuotaReserved", False, "WaitingForQuota", "no quota"))
    for position in (3, None):
        world.cluster.queue_positions = {world.key: position} if position else {}
        await world.pass_time(60)
        world.restart_controller()
        await world.settle()
        golden(world.status.message)
    assert len([reason for reason, _ in world.cluster.events if reason == "Queued"]) == 1


MADE = {"kueue.x-k8s.io/prebuilt-workload-name": "made"}


def made(world: QueueWorld, *, workers: int = 2, owner: str = "") -> None:
    """MultiKueue has made a Workload."""
    metadata: dict[str, Any] = {"name": "made", "namespace": "default"}
    if owner:
        metadata["ownerReferences"] = [{"controller": True, "uid": owner}]
    sets = [{"name": "worker", "count": workers}, {"name": "evaluator", "count": 1}]
    spec = {"queueName": "research", "podSets": sets, "priority": 7}
    world.cluster.put({"kind": "Workload", "metadata": metadata, "spec": spec})


async def test_a_prebuilt_workload_becomes_the_jobs_own_and_is_left_as_it_is() -> None:
    world = QueueWorld(build_queued_job(MADE))
    made(world)
    await world.settle()
    assert created(world) == set()
    assert world.workload["metadata"]["name"] == "made"
    uid = world.cluster.job(world.key)["metadata"]["uid"]
    labels = world.workload["metadata"]["labels"]
    assert (labels["trainjob.dev/job"], labels["kueue.x-k8s.io/job-uid"]) == ("digits", uid)
    spec = world.workload["spec"]
    await world.admit()
    world.each(world.cluster.run_pod)
    await world.settle()
    assert world.status.state == "Running"
    world.edit(suspend=True)
    await world.settle()
    assert world.workload["spec"] == spec
    assert "Workload" not in created(world)


@pytest.mark.parametrize(("workers", "owner"), [(None, ""), (2, "another-uid"), (3, "")])
async def test_a_prebuilt_workload_that_cannot_be_the_jobs_is_not_taken(
    workers: int | None, owner: str, golden: Golden
) -> None:
    world = QueueWorld(build_queued_job(MADE))
    if workers is not None:
        made(world, workers=workers, owner=owner)
    await world.pass_time(60)
    golden(world.status.message)
    assert (world.cluster.workload(world.key), world.pods, created(world)) == (None, [], set())
    if workers is None:
        made(world)
        await world.pass_time(60)
        assert world.workload["metadata"]["name"] == "made"


def build_delegated_job() -> dict[str, Any]:
    return build_queued_job(managedBy="kueue.x-k8s.io/multikueue")


async def test_multikueue_runs_a_job_elsewhere_and_the_workload_asks_for_it(golden: Golden) -> None:
    world = QueueWorld(build_delegated_job())
    world.add("PriorityClass", "any", value=1)
    await world.settle()
    assert world.status.state == "Queued"
    golden(world.status.message)
    await world.admit()
    copied = {"state": "Running", "conditions": [], "message": "training on 2 workers"}
    world.cluster.change(world.cluster.job(world.key), {"status": copied})
    await world.pass_time(60)
    assert world.status.state == "Running"
    golden(world.status.message)
    assert world.condition("PodsReady") is None
    await world.evict()
    assert world.condition("QuotaReserved") == ("False", "Pending")
    assert world.status.state == "Queued"
    golden(world.status.message)
    await world.admit()
    done = {"type": "Complete", "status": "True", "reason": "TrainingFinished", "message": "done"}
    done["lastTransitionTime"] = world.now.isoformat()
    world.cluster.change(
        world.cluster.job(world.key), {"status": {"state": "Complete", "conditions": [done]}}
    )
    await world.settle()
    assert world.condition("Finished") == ("True", "Succeeded")
    assert world.workload["metadata"]["finalizers"] == []
    assert created(world) == {"Workload"}


async def test_a_suspended_job_of_multikueue_gives_its_quota_back() -> None:
    world = QueueWorld(build_delegated_job())
    await world.settle()
    await world.admit()
    world.edit(suspend=True)
    await world.settle()
    assert (world.status.state, world.workload["spec"]["active"]) == ("Suspended", False)
    await world.evict("Deactivated", "The workload is deactivated")
    assert world.condition("QuotaReserved") == ("False", "Pending")
    world.edit(suspend=False)
    await world.settle()
    assert (world.status.state, world.workload["spec"]["active"]) == ("Queued", True)


@pytest.mark.parametrize("kueue", ["", None])
async def test_a_job_of_multikueue_is_left_alone_without_kueue(kueue: str | None) -> None:
    world = QueueWorld(build_delegated_job(), kueue=kueue)
    await world.settle()
    assert world.cluster.writes == []


async def test_a_workload_that_the_cluster_refuses_is_reported_and_tried_again(golden: Golden) -> None:
    world = QueueWorld()
    refused = Refused("Forbidden", "workloads is forbidden")
    world.cluster.fault = lambda operation, _: refused if operation == "create" else None
    await world.settle()
    golden(world.status.message)
    world.cluster.fault = lambda _operation, _manifest: None
    await world.pass_time(30)
    assert created(world) == {"Workload"}
    golden(world.status.message)


async def test_a_workload_that_can_never_be_accepted_fails_the_job(golden: Golden) -> None:
    world = QueueWorld()
    refused = Refused("Invalid", "the key is reserved for internal kueue use")
    world.cluster.fault = lambda operation, _: refused if operation == "create" else None
    await world.settle()
    assert world.status.state == "Failed"
    golden(world.status.message)


async def test_a_creation_whose_answer_was_lost_is_not_repeated() -> None:
    world = QueueWorld()
    lost: list[Any] = [AlreadyExists("Workload exists")]
    world.cluster.fault_after = lambda operation, _: lost.pop() if operation == "create" and lost else None
    await world.settle()
    assert created(world) == {"Workload"}
    assert world.status.state == "Queued"


async def test_a_new_controller_writes_nothing_about_jobs_that_wait_run_or_have_ended() -> None:
    world = QueueWorld()
    await world.settle()
    for step in (world.admit, lambda: finish(world)):
        before = len(world.cluster.writes)
        world.restart_controller()
        await world.settle()
        assert world.cluster.writes[before:] == []
        await step()


def test_time_in_a_queue_is_part_of_what_was_spent() -> None:
    assert "queued" in StateSeconds.model_fields
