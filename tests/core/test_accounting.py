"""Where a job's time goes."""

from __future__ import annotations

from support.world.agents import training
from support.world.jobs import build_job
from support.world.world import World


async def test_each_state_has_its_seconds() -> None:
    world = World(build_job(evaluator=False, workers=1, restartStrategy="Recreate"))
    await world.settle()
    await world.pass_time(7)
    world.each(world.cluster.run_pod)
    await world.pass_time(100)
    world.edit(suspend=True)
    await world.settle()
    world.let_go()
    await world.pass_time(50)
    world.edit(suspend=False)
    await world.started()
    spent = world.status.spent
    assert (spent.starting, spent.training, spent.suspended) == (7, 100, 50)


async def test_steps_that_are_done_again_are_counted() -> None:
    world, agents = await training(build_job(evaluator=False))
    agents.report("worker-0", step=35, checkpointStep=30)
    agents.fail("worker-1", step=36)
    agents.meet()
    await world.settle()
    agents.fail("worker-1", step=38)
    agents.meet()
    await world.settle()
    assert world.status.restarts.steps_lost == 6 + 8


async def test_steps_are_lost_with_a_pod_that_stops_reporting() -> None:
    world, agents = await training(build_job(evaluator=False))
    agents.report("worker-0", step=35, checkpointStep=30)
    world.cluster.remove(world.pod("worker", 1))
    await world.settle()
    assert world.status.restarts.steps_lost == 5
