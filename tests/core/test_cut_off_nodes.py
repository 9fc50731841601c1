"""Pods that outlive their deletion: their nodes are cut off, and what they write there is unknown."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from support.golden import Golden
from support.world.jobs import build_job, build_plain_job
from support.world.world import World

GRACE_AND_MORE = 3600.0
OWN = {"evaluator": False, "workers": 1}

FENCED = {
    "agents": build_job,
    "an emptyDir": lambda **changes: build_plain_job(**{**OWN, "output": {"emptyDir": {}}, **changes}),
    "an ephemeral claim": lambda **changes: build_plain_job(
        **{**OWN, "output": {"ephemeral": {}}, **changes}
    ),
}
SHARED = {
    "a claim": {"claim": {"claimName": "training"}},
    "nfs": {"nfs": {"server": "nfs.example.com", "path": "/exports"}},
    "csi": {"csi": {"driver": "csi.example.com"}},
}


def names(world: World) -> set[str]:
    return {pod["metadata"]["name"] for pod in world.pods}


async def crash(world: World) -> None:
    world.cluster.end_pod(world.pod("worker", 1), 1, message="ValueError: boom")


async def resize(world: World) -> None:
    world.edit(worker={"replicas": 3})


async def suspend_and_resume(world: World) -> None:
    world.edit(suspend=True)
    await world.pass_time(60)
    world.edit(suspend=False)


async def nothing_else(_world: World) -> None:
    pass


SUCCESSIONS: dict[str, Callable[[World], Awaitable[None]]] = {
    "the cluster deletes it": nothing_else,
    "another worker crashes": crash,
    "it is resized": resize,
    "it is suspended and resumed": suspend_and_resume,
}


async def cut_off(world: World, succession: str = "the cluster deletes it") -> dict[str, Any]:
    """Cut worker 0's node off, and bring about a new attempt; all other pods end when they are asked to."""
    old = world.pod("worker", 0)
    world.cut_off(old)
    await SUCCESSIONS[succession](world)
    await world.settle()
    for pod in world.pods:
        if pod["metadata"]["name"] != old["metadata"]["name"] and "deletionTimestamp" in pod["metadata"]:
            world.cluster.end_pod(pod, 143)
    return old


@pytest.mark.parametrize("output", SHARED.values(), ids=SHARED)
@pytest.mark.parametrize("succession", SUCCESSIONS)
async def test_without_a_fence_no_successor_starts_beside_a_pod_that_may_write(
    succession: str, output: dict[str, Any]
) -> None:
    world = await World(build_plain_job(evaluator=False, output=output)).started()
    old = await cut_off(world, succession)
    await world.pass_time(GRACE_AND_MORE)
    assert names(world) == {old["metadata"]["name"]}

    world.cluster.remove(old)
    await world.started()
    assert world.status.state == "Running"
    assert old["metadata"]["name"] not in names(world)


async def test_who_is_waited_for_why_and_what_to_do_is_said_once(golden: Golden) -> None:
    world = await World(build_plain_job(evaluator=False)).started()
    old = await cut_off(world)
    await world.pass_time(39)
    assert "PodOverdue" not in dict(world.cluster.events)
    await world.pass_time(2)
    message = world.status.message
    assert world.status.state == "Restarting"
    assert f"`kubectl delete pod {old['metadata']['name']} -n default --force`" in (message or "")
    golden(message)
    writes = len(world.cluster.writes)
    world.restart_controller()
    await world.pass_time(GRACE_AND_MORE)
    assert [told for reason, told in world.cluster.events if reason == "PodOverdue"] == [message]
    assert len(world.cluster.writes) == writes


async def test_a_container_whose_end_is_reported_is_waited_for_no_longer() -> None:
    world = await World(build_plain_job(evaluator=False)).started()
    old = await cut_off(world)
    await world.pass_time(GRACE_AND_MORE)
    # The node has come back; a foreign finalizer keeps the object.
    world.cluster.evict_pod(old)
    await world.settle()
    assert len(names(world) - {old["metadata"]["name"]}) == 2


@pytest.mark.parametrize("build", FENCED.values(), ids=FENCED)
async def test_with_a_fence_a_successor_starts_soon_after_the_grace_period(build: Any) -> None:
    world = await World(build()).started()
    old = world.pod("worker", 0)
    world.cut_off(old)
    await world.settle()
    await world.pass_time(41)
    assert world.pod("worker", 0)["metadata"]["name"] != old["metadata"]["name"]


async def test_the_time_to_get_together_begins_when_there_are_pods() -> None:
    world = await World(build_plain_job(evaluator=False, startTimeoutSeconds=600)).started()
    old = await cut_off(world)
    await world.pass_time(GRACE_AND_MORE)
    world.cluster.remove(old)
    await world.pass_time(599)
    assert "StartTimeout" not in dict(world.cluster.events)
    await world.pass_time(2)
    assert "StartTimeout" in dict(world.cluster.events)


EARLIER_AND_LATER = {
    "none has an agent": (build_plain_job, build_plain_job, True),
    "the earlier one has none": (build_plain_job, build_job, True),
    "the later one has none": (build_job, build_plain_job, True),
    "both have agents": (build_job, build_job, False),
    "the later one's output is its pod's": (build_plain_job, FENCED["an emptyDir"], False),
}


@pytest.mark.parametrize(
    ("earlier", "later", "is_waited_for"), EARLIER_AND_LATER.values(), ids=EARLIER_AND_LATER
)
async def test_a_new_job_waits_for_what_an_earlier_one_of_its_name_had_replaced(
    earlier: Any, later: Any, *, is_waited_for: bool, golden: Golden
) -> None:
    """Its Service doesn't name that pod any more, which may write into the same folder all the same."""
    world = await World(earlier(evaluator=False)).started()
    old = await cut_off(world)
    await world.pass_time(60)
    left_over = next(p for p in world.pods if p["metadata"]["name"] == old["metadata"]["name"])
    assert "trainjob.dev/live" not in left_over["metadata"]["labels"]
    world.cluster.delete_job(world.key)
    world.cluster.put(left_over)
    world.cluster.apply(later())
    await world.settle()
    assert (names(world) == {old["metadata"]["name"]}) is is_waited_for
    if is_waited_for:
        told = [message for reason, message in world.cluster.events if reason == "PodOverdue"]
        assert told[-1] == world.status.message
        golden(told[-1])
        world.cluster.remove(left_over)
        await world.settle()
        assert len(world.pods) > 1
