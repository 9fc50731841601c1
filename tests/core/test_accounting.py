"""Where a job's time and its steps go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.world.agents import Agents, training
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
    spent = world.status.state_seconds
    assert (spent.starting, spent.training, spent.suspended) == (7, 100, 50)


async def at_step(step: int, **job: Any) -> tuple[World, Agents]:
    """A job that trains, with a checkpoint at step 30."""
    world, agents = await training(build_job(evaluator=False, **job))
    agents.report("worker-0", state="training", step=step, checkpointStep=30)
    await world.settle()
    return world, agents


async def goes_on(world: World, agents: Agents, **report: Any) -> int:
    """The next attempt begins; return the steps that are lost by its first report."""
    world.each(lambda pod: world.cluster.run_pod(pod) if pod["status"]["phase"] == "Pending" else None)
    agents.meet()
    await world.settle()
    agents.report("worker-0", state="importing")
    await world.settle()
    agents.report("worker-0", state="training", **report)
    await world.settle()
    assert world.status.restarts.reached_step is None
    return world.status.restarts.steps_lost


async def test_steps_that_are_done_again_are_counted() -> None:
    world, agents = await at_step(35)
    agents.fail("worker-1", code=137, step=36)
    await world.settle()
    assert (world.status.restarts.reached_step, world.status.restarts.steps_lost) == (36, 0)
    assert await goes_on(world, agents, step=30, resumedFrom=30) == 6
    agents.fail("worker-1", code=137, step=38)
    assert await goes_on(world, agents, step=31, resumedFrom=30) == 6 + 8


async def test_steps_are_lost_with_a_pod_that_stops_reporting() -> None:
    world, agents = await at_step(35)
    world.cluster.remove(world.pod("worker", 1))
    await world.settle()
    assert await goes_on(world, agents, step=30, resumedFrom=30) == 5


@pytest.mark.parametrize("index", [0, 1])
async def test_steps_that_a_pod_saves_while_it_leaves_are_not_lost(index: int) -> None:
    world, agents = await at_step(35)
    world.cluster.ask_to_end(world.pod("worker", index))
    await world.settle()
    agents.report("worker-0", state="saving", step=37, checkpointStep=37)
    await world.settle()
    world.let_go()
    await world.settle()
    assert await goes_on(world, agents, step=37, resumedFrom=37) == 0


async def test_steps_after_the_decision_are_lost_too_if_they_are_not_saved() -> None:
    world, agents = await at_step(35)
    world.cluster.ask_to_end(world.pod("worker", 1))
    await world.settle()
    agents.report("worker-0", state="training", step=39, checkpointStep=30)
    await world.settle()
    world.restart_controller()
    await world.pass_time(31)
    world.let_go()
    await world.settle()
    assert await goes_on(world, agents, step=30, resumedFrom=30) == 9


async def test_an_attempt_that_ends_before_its_first_step_changes_nothing() -> None:
    world, agents = await at_step(35)
    agents.fail("worker-1", code=137, step=36)
    agents.meet()
    await world.settle()
    agents.fail("worker-1", code=137)
    await world.settle()
    assert await goes_on(world, agents, step=30, resumedFrom=30) == 6


@pytest.mark.parametrize(("step", "lost"), [(31, 6), (12, 24)])
async def test_a_loop_that_does_not_report_where_it_resumed(step: int, lost: int) -> None:
    """It goes on from the checkpoint that is known, unless it has reported a step before that."""
    world, agents = await at_step(35)
    agents.fail("worker-1", code=137, step=36)
    assert await goes_on(world, agents, step=step) == lost


async def test_a_controller_that_was_away_counts_when_it_is_back() -> None:
    """It is the next attempt's report that counts, and that is there for as long as the attempt."""
    world, agents = await at_step(35)
    agents.fail("worker-1", code=137, step=36)
    await world.settle()
    world.restart_controller()
    agents.meet()
    agents.report("worker-0", state="training", step=80, resumedFrom=30, checkpointStep=70)
    world.restart_controller()
    await world.settle()
    assert (world.status.restarts.steps_lost, world.status.restarts.reached_step) == (6, None)


async def test_lost_steps_are_written_with_the_first_step() -> None:
    world, agents = await at_step(35)
    agents.fail("worker-1", code=137, step=36)
    agents.meet()
    await world.settle()
    before = len(world.cluster.writes)
    agents.report("worker-0", state="training", step=30, resumedFrom=30)
    await world.settle()
    assert (world.status.restarts.steps_lost, len(world.cluster.writes)) == (6, before + 1)


ROUNDS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans(), st.booleans()), max_size=4)
"""Of each attempt: steps before its last checkpoint and after, whether it saves at its end, and whether the
controller restarts then."""


@settings(max_examples=settings.default.max_examples // 4)
@given(ROUNDS)
def test_steps_lost_are_those_that_no_checkpoint_has(rounds: list[tuple[int, int, bool, bool]]) -> None:
    asyncio.run(lives(rounds))


async def lives(rounds: list[tuple[int, int, bool, bool]]) -> None:
    world, agents = await training(build_job(evaluator=False, maxRestarts=9))
    saved = lost = 0
    for before, after, saves, restarts in rounds:
        begin, saved = saved or None, saved + before
        agents.report("worker-0", step=saved + after, checkpointStep=saved, resumedFrom=begin)
        await world.settle()
        if saves:
            world.cluster.ask_to_end(world.pod("worker", 1))
            saved += after
        else:
            agents.fail("worker-1", code=137, step=saved + after)
            lost += after
        await world.settle()
        agents.not_counted = world.status.restarts.not_counted
        if restarts:
            world.restart_controller()
        world.let_go()
        await world.settle()
        assert await goes_on(world, agents, step=saved, resumedFrom=saved or None) == lost
