"""The life of a job that is refused what it needs, and of an evaluator in trouble."""

from __future__ import annotations

from typing import Any

from support.golden import Golden
from support.world.jobs import build_plain_job
from support.world.world import World
from trainjob.cluster import Refused


async def test_an_evaluators_time_does_not_pass_while_suspended() -> None:
    world = await World(build_plain_job()).started()
    world.each(lambda pod: world.cluster.end_pod(pod, 0), "worker")
    await world.settle()
    world.edit(suspend=True)
    await world.settle()
    world.let_go()
    await world.pass_time(3600)
    world.edit(suspend=False)
    await world.settle()
    assert world.status.state == "Evaluating"
    assert world.pod("evaluator")


def refuse_evaluator(operation: str, manifest: dict[str, Any]) -> Exception | None:
    theirs = operation == "create" and "-evaluator-" in manifest["metadata"]["name"]
    return Refused("Forbidden", "exceeded quota: pods") if theirs else None


async def test_a_refused_evaluator_is_reported_and_tried_again_while_workers_train(golden: Golden) -> None:
    world = World(build_plain_job())
    world.cluster.fault = refuse_evaluator
    await world.started()
    again = await world.settle()
    assert world.status.state == "Running"
    golden(world.status.message)
    assert again is not None
    before = len(world.cluster.writes)
    await world.pass_time(300)
    assert len(world.cluster.writes) == before
    world.cluster.fault = lambda *_: None
    await world.pass_time(15)
    assert world.pod("evaluator")
    golden(world.status.message)


async def test_an_evaluator_that_is_refused_for_good_fails_no_training(golden: Golden) -> None:
    world = World(build_plain_job())
    world.cluster.fault = lambda operation, manifest: (
        Refused("Invalid", "no such field") if refuse_evaluator(operation, manifest) else None
    )
    await world.started()
    assert world.status.state == "Running"
    world.each(lambda pod: world.cluster.end_pod(pod, 0), "worker")
    await world.pass_time(600)
    assert world.status.state == "Complete"
    golden(world.status.message)


async def test_an_evicted_evaluator_comes_back_at_any_budget() -> None:
    world = await World(build_plain_job(maxRestarts=0)).started()
    for incarnation in range(2, 6):
        pod = world.pod("evaluator")
        world.cluster.evict_pod(pod)
        pod["status"]["containerStatuses"] = []  # the kubelet doesn't always say when
        await world.pass_time(60)
        assert world.pod("evaluator")["metadata"]["labels"]["trainjob.dev/incarnation"] == str(incarnation)


async def test_a_new_job_does_not_inherit_what_was_refused_to_its_namesake() -> None:
    world = World(build_plain_job(evaluator=False))
    world.cluster.fault = lambda operation, manifest: (
        Refused("Invalid", "bad") if operation == "create" and manifest["kind"] == "Pod" else None
    )
    await world.reconciler.reconcile(world.key)
    await world.reconciler.reconcile(world.key)
    world.cluster.fault = lambda *_: None
    world.cluster.delete_job(world.key)
    world.cluster.apply(build_plain_job(evaluator=False))
    await world.started()
    assert world.status.state == "Running"


async def test_a_new_job_waits_for_the_processes_of_its_namesake() -> None:
    world = await World(build_plain_job()).started()
    left_over = world.pod("worker", 0)
    world.cluster.delete_job(world.key)
    world.cluster.put(
        {**left_over, "metadata": {**left_over["metadata"], "deletionTimestamp": "2026-01-01T00:00:30Z"}}
    )
    world.cluster.apply(build_plain_job())
    await world.settle()
    assert [pod["metadata"]["name"] for pod in world.pods] == [left_over["metadata"]["name"]]
    assert left_over["metadata"]["name"] in (world.status.message or "")
    world.cluster.remove(world.pods[0])
    await world.started()
    assert world.status.state == "Running"


async def test_a_claim_of_the_users_may_have_any_name() -> None:
    world = World(build_plain_job(output={"claim": {"claimName": "digits-output"}}))
    world.cluster.put(
        {"kind": "PersistentVolumeClaim", "metadata": {"name": "digits-output", "namespace": "default"}}
    )
    await world.started()
    assert world.status.state == "Running"


async def test_an_invalid_job_of_another_controller_is_left_alone() -> None:
    world = World(build_plain_job(managedBy="kueue.x-k8s.io/multikueue", maxRestarts=-1))
    await world.settle()
    assert world.cluster.writes == []


async def test_an_evaluator_that_left_on_request_is_not_done() -> None:
    world = await World(build_plain_job(maxRestarts=0)).started()
    pod = world.pod("evaluator")
    world.cluster.end_pod(pod, 0)
    pod["metadata"]["deletionTimestamp"] = world.now.isoformat()
    await world.settle()
    assert world.pod("evaluator")["metadata"]["labels"]["trainjob.dev/incarnation"] == "2"


class Quota:
    """Lets in so many pods, and counts how often it is asked for more."""

    def __init__(self, world: World, pods: int) -> None:
        self._world = world
        self.pods = pods
        self.refused = 0

    def __call__(self, operation: str, manifest: dict[str, Any]) -> Exception | None:
        if operation != "create" or manifest["kind"] != "Pod" or len(self._world.pods) < self.pods:
            return None
        self.refused += 1
        return Refused("Forbidden", f"exceeded quota: used pods: {len(self._world.pods)}")


async def test_what_becomes_of_the_pods_that_are_there_is_no_reason_to_ask_again() -> None:
    world = World(build_plain_job(workers=8, startTimeoutSeconds=7200))
    quota = world.cluster.fault = Quota(world, pods=4)
    await world.settle()
    assert quota.refused == 5, "four workers and the evaluator, at once"
    for pod in world.pods:
        world.cluster.run_pod(pod)
        await world.settle()
    assert quota.refused == 5
    assert world.status.state == "Pending"
    await world.pass_time(5)
    assert quota.refused == 10
    await world.pass_time(3600)
    assert quota.refused <= 5 * (6 + 3600 / 60), "in the end once a minute"


async def test_a_job_continues_soon_after_the_quota_was_lifted() -> None:
    world = World(build_plain_job(workers=3, startTimeoutSeconds=7200))
    quota = world.cluster.fault = Quota(world, pods=1)
    await world.settle()
    await world.pass_time(3600)
    quota.pods = 2  # not enough yet
    await world.pass_time(60)
    assert len(world.pods) == 2
    assert world.status.state == "Pending"
    quota.pods = 9
    await world.pass_time(60)
    await world.started()
    assert world.status.state == "Running"
    assert world.status.restarts.counted == 0


async def test_what_is_asked_for_later_is_asked_for_at_once() -> None:
    """The patience that one refusal took doesn't outlive it."""
    world = World(build_plain_job(workers=2, maxRestarts=9))
    quota = world.cluster.fault = Quota(world, pods=1)
    await world.settle()
    await world.pass_time(500)
    quota.pods = 9
    await world.pass_time(60)
    await world.started()
    world.cluster.end_pod(world.pod("worker", 0), 1)
    await world.settle()
    world.let_go()
    await world.started()
    assert world.status.state == "Running"
    assert world.status.attempt == 2
