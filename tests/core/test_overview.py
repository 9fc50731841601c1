"""When figures are written: at once where users wait for them, else at most every half a minute."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from support.world.agents import Agents, training
from support.world.jobs import build_job
from support.world.world import World


def step_of(world: World) -> int | None:
    return world.status.progress.step if world.status.progress else None


async def tell(world: World, agents: Agents, step: int, **more: int) -> int:
    """Worker 0 has come to this step; return what the status says a moment later."""
    agents.report("worker-0", step=step, totalSteps=100, **more)
    await world.pass_time(1)
    found = step_of(world)
    assert found is not None
    return found


async def test_the_first_step_of_each_attempt_is_written_at_once_and_the_next_ones_are_not() -> None:
    world, agents = await training(build_job(evaluator=False))
    assert await tell(world, agents, 1) == 1
    assert await tell(world, agents, 2) == 1
    await world.pass_time(30)
    assert step_of(world) == 2
    assert await tell(world, agents, 40, checkpointStep=40) == 2
    agents.fail("worker-1", step=40)
    agents.reports.clear()
    await world.settle()
    agents.meet()
    await world.settle()
    assert await tell(world, agents, 41, resumedFrom=40) == 41, "the first of the second attempt"
    before = list(world.cluster.writes)
    assert await tell(world, agents, 42) == 41
    assert world.cluster.writes == before


async def test_notices_are_figures_that_are_only_added() -> None:
    """No pass and no write comes of them, and neither a restart nor another leading agent takes them away."""
    world, agents = await training(build_job(evaluator=False))
    await tell(world, agents, 1)
    agents.notices = ["trained alone"]
    before = list(world.cluster.writes)
    await tell(world, agents, 2)
    assert (world.status.notices, world.cluster.writes) == ((), before)
    await world.pass_time(30)
    assert world.status.notices == ("trained alone",)
    agents.notices = []
    agents.fail("worker-1", step=2)
    agents.reports.clear()
    agents.meet()
    agents.report("worker-0", step=2, totalSteps=100, resumedFrom=2, notices=["another rate"])
    await world.settle()
    words = json.dumps({"state": "finished", "step": 100, "totalSteps": 100, "notices": ["no model"]})
    for index in (0, 1):
        world.cluster.end_pod(world.pod("worker", index), 0, message=words)
    await world.settle()
    assert world.status.state == "Complete"
    assert world.status.notices == ("trained alone", "another rate", "no model")


async def test_the_first_step_has_a_time_of_its_own() -> None:
    """A process that has resumed reports its step before it has made one."""
    world, agents = await training(build_job(evaluator=False))
    await tell(world, agents, 40, resumedFrom=40)
    assert world.status.first_step_time is None
    await tell(world, agents, 41, resumedFrom=40)
    first = world.status.first_step_time
    assert first is not None
    agents.fail("worker-1", step=41)
    agents.meet()
    await tell(world, agents, 41, resumedFrom=40)
    assert world.status.first_step_time == first


async def test_a_checkpoint_has_the_time_at_which_its_step_was_first_seen() -> None:
    def saved() -> tuple[int | None, datetime | None]:
        output = world.status.output
        return (output.checkpoint_step, output.checkpoint_time) if output else (None, None)

    world, agents = await training(build_job(evaluator=False))
    await tell(world, agents, 10, checkpointStep=10)
    step, first = saved()
    assert (step, first is not None) == (10, True)
    await tell(world, agents, 20, checkpointStep=10)
    await world.pass_time(60)
    assert saved() == (10, first)
    await tell(world, agents, 30, checkpointStep=30)
    await world.pass_time(30)
    step, second = saved()
    assert (step, second) > (30, first)


async def test_a_step_from_further_back_is_written_at_once() -> None:
    """Agents may still have the report of the process before when they report the new attempt."""
    world, agents = await training(build_job(evaluator=False))
    assert await tell(world, agents, 40) == 40
    agents.fail("worker-1", step=40)
    agents.meet()
    await world.settle()
    assert await tell(world, agents, 31, resumedFrom=30) == 31


async def test_the_last_step_is_that_of_the_termination_message_not_of_an_earlier_report() -> None:
    world, agents = await training(build_job(evaluator=False))
    await tell(world, agents, 95, checkpointStep=90)
    words = json.dumps({"state": "finished", "step": 100, "totalSteps": 100, "checkpointStep": 100})
    for index in (0, 1):
        world.cluster.end_pod(world.pod("worker", index), 0, message=words)
    await world.settle()
    assert world.status.state == "Complete"
    assert step_of(world) == 100
    assert world.status.output is not None
    assert world.status.output.checkpoint_step == 100


async def test_a_curve_is_written_once_training_is_over() -> None:
    """Reports have it all the time, termination messages less of it; the evaluator's comes later."""
    world, agents = await training(build_job())
    agents.report("worker-0", step=50, totalSteps=100, curves={"loss": "10:2 50:1"})
    await world.pass_time(60)
    assert world.status.progress is not None
    assert (world.status.progress.step, world.status.curves) == (50, {})
    whole = {"loss": "10:2 20:1.9 50:1 90:0.6 100:0.5", "val_loss": "100:0.75"}
    agents.report("worker-0", state="finished", step=100, curves=whole)
    words = json.dumps({"state": "finished", "step": 100, "curves": {"loss": "10:2 100:0.5"}})
    for index in (0, 1):
        world.cluster.end_pod(world.pod("worker", index), 0, message=words)
    await world.settle()
    assert world.status.state == "Evaluating"
    assert world.status.curves == whole
    result = {"step": 100, "metrics": {"loss": 0.5}, "final": True}
    scored = {"state": "finished", "evaluation": result, "curves": {"loss": "90:0.7 100:0.5"}}
    world.cluster.end_pod(world.pod("evaluator"), 0, message=json.dumps(scored))
    await world.settle()
    known = {"loss": whole["loss"], "val_loss": "90:0.7 100:0.5"}
    assert (world.status.state, world.status.curves) == ("Complete", known)
    world.each(world.cluster.remove)
    await world.pass_time(60)
    assert (world.status.state, world.status.curves) == ("Complete", known)


async def test_a_termination_message_alone_has_the_curve() -> None:
    """The controller has started meanwhile, or the pods have no agents."""
    world, agents = await training(build_job(evaluator=False))
    agents.report("worker-0", step=50, curves={"loss": "10:2 20:1.5 50:1"})
    words = json.dumps({"state": "finished", "step": 100, "curves": {"loss": "10:2 100:0.5"}})
    for index in (0, 1):
        world.cluster.end_pod(world.pod("worker", index), 0, message=words)
    await world.settle()
    assert (world.status.state, world.status.curves) == ("Complete", {"loss": "10:2 100:0.5"})


@pytest.mark.parametrize("ends", ["fails", "takes too long"])
async def test_a_failed_job_keeps_the_curves_of_pods_that_are_gone(ends: str) -> None:
    world, agents = await training(build_job(maxRestarts=0, activeDeadlineSeconds=600))
    agents.report("worker-0", step=50, curves={"loss": "10:2 50:1"})
    if ends == "fails":
        agents.fail("worker-1", step=50)
        agents.phase = "failed"
        agents.tell()
        words = json.dumps({**agents.words(), "report": {"state": "failed", "step": 50}})
        world.cluster.end_pod(world.pod("worker", 1), 1, message=words)
        await world.settle()
    else:
        await world.pass_time(600)
    world.let_go()
    await world.pass_time(60)
    assert world.pods == [] or ends == "fails"
    assert (world.status.state, world.status.curves) == ("Failed", {"loss": "10:2 50:1"})


@pytest.mark.parametrize(
    ("curves", "known"),
    [
        ({"loss": "no curve", "a\x1b[31m": "1:1", "b": 3, "c": "1:nan 2:inf"}, {}),
        ({"loss": "2:1 1:2 x 3:nan 4:1e999 -5:1"}, {"loss": "1:2 2:1"}),
        ({"loss": "1:1.23456789"}, {"loss": "1:1.2346"}),
        ({"loss": "1:1 " * 9_999}, {}),
        ("1:1", {}),
    ],
)
async def test_no_curve_of_a_pod_reaches_the_status_as_it_is(curves: object, known: dict[str, str]) -> None:
    world, _ = await training(build_job(evaluator=False))
    words = json.dumps({"state": "finished", "step": 100, "curves": curves})
    for index in (0, 1):
        world.cluster.end_pod(world.pod("worker", index), 0, message=words)
    await world.settle()
    assert (world.status.state, world.status.curves) == ("Complete", known)


async def test_each_start_timeout_has_the_same_message() -> None:
    """So that the event is one whose count grows; when it tries again is in a field of its own."""
    world = World(build_job(startTimeoutSeconds=60, evaluator=False))
    agents = Agents(world)
    pauses = []
    for _ in range(3):
        await world.settle()
        world.each(lambda pod: world.cluster.hold_pod(pod, "Unschedulable", "no room"))
        agents.tell()
        before = len(world.cluster.events)
        while len(world.cluster.events) == before or world.cluster.events[-1][0] != "StartTimeout":
            await world.pass_time(1)
        assert world.status.restarts.next_time is not None
        pauses.append((world.status.restarts.next_time - world.now).total_seconds())
        world.let_go()
        await world.pass_time(pauses[-1] - 1)
        assert world.pods == []
        await world.pass_time(1)
        assert len(world.pods) == 2
    told = {message for reason, message in world.cluster.events if reason == "StartTimeout"}
    assert len(told) == 1
    assert all(5 <= pause <= 60 for pause in pauses)
    assert len(set(pauses)) == 3, "another one each time"
