from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from support.world.jobs import build_plain_job
from support.world.world import World
from trainjob.cluster import AlreadyExists, NotFound, Refused


def refusing(message: str) -> Any:
    """A cluster that refuses pods."""
    return lambda operation, manifest: (
        Refused("Forbidden", message) if operation == "create" and manifest["kind"] == "Pod" else None
    )


async def passes(world: World, number: int) -> timedelta | None:
    again = None
    for _ in range(number):
        again = await world.reconciler.reconcile(world.key)
    return again


async def test_a_name_in_use_by_an_unseen_object_is_left_to_the_queues_back_off() -> None:
    """A pod whose labels were removed is not seen, and holds its name."""
    world = World(build_plain_job(evaluator=False))
    await world.settle()
    world.pod("worker", 0)["metadata"]["labels"].clear()
    with pytest.raises(AlreadyExists):
        await world.reconciler.reconcile(world.key)


async def test_the_other_replicas_are_created_all_the_same() -> None:
    world = World(build_plain_job())
    await world.settle()
    world.pod("worker", 0)["metadata"]["labels"].clear()
    world.cluster.remove(world.pod("worker", 1))
    with pytest.raises(AlreadyExists):
        await world.reconciler.reconcile(world.key)
    assert world.pod("worker", 1)


async def test_no_pod_starts_behind_a_service_that_is_out_of_sight() -> None:
    """What isn't labelled as ours is only seen when its name turns out to be taken."""
    world = World(build_plain_job())
    world.cluster.fault = lambda operation, manifest: (
        AlreadyExists("web") if operation == "create" and manifest["kind"] == "Service" else None
    )
    with pytest.raises(AlreadyExists):
        await passes(world, 3)
    assert world.pods == []


async def test_a_refusal_is_reported_at_once_and_tried_again_slowly() -> None:
    world = World(build_plain_job())
    world.cluster.fault = refusing("used pods: 0")
    assert await passes(world, 1) == timedelta(0)
    assert await passes(world, 1) == timedelta(seconds=5)
    assert world.status.conditions[0].reason == "CreationRefused"
    world.cluster.fault = refusing("used pods: 1")
    world.now += timedelta(seconds=5)
    assert await passes(world, 1) == timedelta(seconds=10), "other words for the same are no news"
    assert await passes(world, 1) == timedelta(seconds=10)


async def test_a_refused_deletion_is_no_refused_template() -> None:
    world = await World(build_plain_job()).started()
    world.edit(suspend=True)
    world.cluster.fault = lambda operation, _: (
        Refused("Invalid", "no") if operation in ("delete", "set_labels") else None
    )
    with pytest.raises(Refused):
        await world.reconciler.reconcile(world.key)
    world.cluster.fault = lambda *_: None
    await world.settle()
    assert world.status.state == "Suspended"


async def test_pods_that_are_gone_before_the_event_of_their_jobs_deletion_are_not_created_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(build_plain_job())
    await world.settle()
    for pod in world.pods:
        world.cluster.remove(pod)
    snapshot = await world.cluster.observe(world.key)
    world.cluster.delete_job(world.key)

    async def behind(_: Any) -> Any:
        return snapshot

    monkeypatch.setattr(world.cluster, "observe", behind)
    with pytest.raises(NotFound):
        await world.reconciler.reconcile(world.key)
    assert world.cluster.pods(world.key) == []
