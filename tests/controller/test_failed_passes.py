"""Creations that fail in any way: the status still has the job's state, and what prevents the creations."""

from __future__ import annotations

from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest

from support.world.jobs import build_plain_job
from support.world.world import World
from trainjob.cluster import AlreadyExists, ClusterError, Refused, Unavailable
from trainjob.core.observed import Snapshot, read_observed
from trainjob.core.plan import plan

BROKEN = Unavailable("failed calling webhook")
TAKEN = AlreadyExists('pods "digits-worker-0" already exists')


def failing(error: ClusterError, role: str) -> Any:
    """Pods of this role can't be created."""
    return lambda operation, manifest: (
        error if operation == "create" and labels_of(manifest).get("trainjob.dev/role") == role else None
    )


def labels_of(manifest: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = manifest["metadata"].get("labels", {})
    return labels


async def passes(world: World, number: int) -> timedelta | ClusterError | None:
    """Reconcile so often, each time when it is due, and return what the last pass gave."""
    again: timedelta | ClusterError | None = None
    for _ in range(number):
        try:
            again = await world.reconciler.reconcile(world.key)
        except ClusterError as error:
            again = error
        world.now += again if isinstance(again, timedelta) else timedelta(seconds=10)
    return again


@pytest.mark.parametrize("error", [BROKEN, TAKEN], ids=["no-answer", "name-taken"])
async def test_an_obstacle_is_reported_after_some_attempts(error: ClusterError) -> None:
    world = World(build_plain_job(startTimeoutSeconds=3600))
    world.cluster.fault = failing(error, "worker")
    await passes(world, 3)
    assert world.status.state == "Pending"
    assert world.status.start_time is not None
    await passes(world, 20)
    assert world.status.conditions[0].reason == "CreationRefused"
    assert str(error) in (world.status.message or "")
    world.cluster.fault = lambda *_: None
    await world.pass_time(60)
    world.each(world.cluster.run_pod)
    await world.settle()
    assert world.status.state == "Running"


@pytest.mark.parametrize("error", [BROKEN, TAKEN], ids=["no-answer", "name-taken"])
async def test_a_failed_pass_for_the_evaluator_does_not_hide_that_training_runs(error: ClusterError) -> None:
    world = World(build_plain_job())
    world.cluster.fault = failing(error, "evaluator")
    await passes(world, 3)
    world.each(world.cluster.run_pod)
    await passes(world, 20)
    assert world.status.state == "Running"


async def test_a_service_that_is_refused_while_the_job_runs_is_tried_again() -> None:
    world = await World(build_plain_job()).started()
    service = world.cluster.find("Service", world.key)
    assert service is not None
    world.cluster.remove(service)
    world.cluster.fault = lambda operation, manifest: (
        Refused("Forbidden", "exceeded quota")
        if operation == "create" and manifest["kind"] == "Service"
        else None
    )
    assert await world.settle() is not None


async def test_a_refusal_for_good_is_not_hidden_by_one_for_now() -> None:
    world = World(build_plain_job(workers=2, chief={}))
    now, good = (
        failing(Refused(reason, "no"), role)
        for reason, role in (("Forbidden", "chief"), ("Invalid", "worker"))
    )
    world.cluster.fault = lambda operation, manifest: now(operation, manifest) or good(operation, manifest)
    await passes(world, 10)
    assert world.status.state == "Failing"


async def test_a_job_that_is_seen_later_than_its_pods_does_not_lose_them() -> None:
    """A new leader's view of the job may be older than its view of the pods."""
    world = await World(build_plain_job()).started()
    before = deepcopy(world.cluster.job(world.key))
    world.cluster.end_pod(world.pod("worker", 0), 1)
    await world.settle()
    world.let_go()
    await world.settle()
    assert world.status.attempt == 2
    service = world.cluster.find("Service", world.key)
    planned = plan(read_observed(Snapshot(before, world.pods, {"Service": service})), world.now)
    assert [str(action) for action in planned.actions] == []
