"""Jobs with parameter servers: a worker that is away doesn't stop the training."""

from __future__ import annotations

from typing import Any

import pytest

from support.golden import Golden
from support.world.agents import Agents, training
from support.world.jobs import build_job
from support.world.world import World


async def coordinated(**spec: Any) -> tuple[World, Agents]:
    """A job that trains with a chief, two workers and a server, at step 30."""
    job = build_job(chief={}, ps={"replicas": 1}, evaluator=False, **spec)
    world, agents = await training(job)
    agents.report("chief-0", state="training", step=30, totalSteps=100, checkpointStep=20, globalBatch=7)
    await world.settle()
    assert world.status.state == "Running"
    return world, agents


def names_of(world: World) -> set[str]:
    return {pod["metadata"]["name"] for pod in world.pods}


async def test_a_process_that_restarts_alone_is_reported_and_the_job_keeps_running(golden: Golden) -> None:
    world, agents = await coordinated()
    before = names_of(world)
    agents.fail_alone("worker-1", code=137, reason="Killed", step=30)
    await world.settle()
    message = dict(world.cluster.events)["Restarted"]
    golden(message)
    status = world.status
    assert (status.state, status.attempt) == ("Running", 2)
    assert (status.restarts.counted, status.restarts.steps_lost) == (1, 0)
    assert status.first_failure is not None
    assert status.first_failure.rank == "worker-1"
    golden(status.first_failure.message)
    assert {c.type for c in status.conditions if c.status == "True"} == {"Running"}
    assert names_of(world) == before


async def test_a_restart_that_has_been_made_good_when_it_is_reported_was_the_first_one(
    golden: Golden,
) -> None:
    world, agents = await coordinated()
    agents.fail_alone("worker-1", code=137, reason="Killed", step=30)
    agents.reset = 1
    agents.tell()
    await world.settle()
    golden(dict(world.cluster.events)["Restarted"])


async def test_a_restart_of_all_is_reported_as_before(golden: Golden) -> None:
    world, agents = await coordinated()
    agents.fail("ps-0", code=137, reason="Killed", step=30)
    await world.settle()
    assert world.status.state == "Restarting"
    golden(world.status.message)
    agents.meet()
    agents.report("chief-0", state="training", step=20, totalSteps=100, resumedFrom=20)
    await world.settle()
    assert world.status.restarts.steps_lost == 10


async def test_a_workers_pod_is_replaced_while_the_others_train_on(golden: Golden) -> None:
    world, agents = await coordinated(startTimeoutSeconds=60)
    kept = names_of(world) - {world.pod("worker", 1)["metadata"]["name"]}
    agents.away = {"worker-1"}
    world.cluster.evict_pod(world.pod("worker", 1))
    agents.tell()
    await world.settle()
    assert world.status.first_failure is not None
    golden(world.status.first_failure.message)
    assert kept < names_of(world)
    assert len(names_of(world)) == len(kept) + 1
    await world.pass_time(300)  # far beyond the time that a worker group has to get together
    assert kept < names_of(world)
    assert world.status.restarts.steps_lost == 0
    agents.attempt += 1
    world.each(lambda p: world.cluster.run_pod(p) if p["status"]["phase"] == "Pending" else None)
    agents.tell()
    await world.settle()
    assert world.status.state == "Running"
    assert world.status.restarts.not_counted == 1


@pytest.mark.parametrize("role", ["chief", "ps"])
async def test_without_the_chief_or_a_server_training_stops(role: str, golden: Golden) -> None:
    world, agents = await coordinated()
    world.cluster.evict_pod(world.pod(role, 0))
    agents.phase = "meeting"
    agents.tell()
    await world.settle()
    assert "restarting from step 20" in (
        world.status.first_failure.message if world.status.first_failure else ""
    )


async def test_any_number_of_workers_goes_with_a_global_batch() -> None:
    world, _ = await coordinated()
    world.edit(worker={"replicas": 3})
    await world.settle()
    assert sum(name.startswith("digits-worker-") for name in names_of(world)) == 3


async def test_workers_may_be_away_where_fewer_would_do_too() -> None:
    world, agents = await coordinated(worker={"replicas": 2, "minReplicas": 1})
    agents.away = {"worker-1"}
    world.cluster.evict_pod(world.pod("worker", 1))
    agents.tell()
    await world.pass_time(300)
    assert world.status.worker is not None
    assert world.status.worker.unavailable == ()
