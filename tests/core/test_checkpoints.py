"""Where messages say that training continues: at no missing checkpoint, nor at the start if there is one."""

from __future__ import annotations

from typing import Any

import pytest

from support.golden import Golden
from support.world.agents import Agents, training
from support.world.jobs import build_job, build_plain_job
from support.world.world import World
from trainjob.core.agent_reports import read_report
from trainjob.core.failure import checkpoint_step, origin
from trainjob.core.names import Replica
from trainjob.core.observed import Observed, Snapshot, read_observed
from trainjob.core.pods import Pod, PodState


def observed(reports: dict[str, dict[str, Any]], written: int | None = None) -> Observed:
    job = build_job(uid="u")
    output = {} if written is None else {"output": {"checkpointStep": written}}
    read = read_observed(Snapshot({**job, "status": output}))
    pods = tuple(Pod(name, name, Replica("worker", int(name[1:])), 1, PodState.RUNNING) for name in reports)
    told = {name: read_report(report) for name, report in reports.items()}
    return Observed(read.meta, read.parsed, status=read.status, pods=pods, reports=told)


@pytest.mark.parametrize(
    ("reports", "written", "step", "words"),
    [
        ({}, None, None, ""),
        ({"p0": {"state": "starting"}}, None, None, ""),
        ({"p1": {"step": 30}}, None, None, ""),  # the writer hasn't reported
        ({"p0": {"step": 30}}, None, None, " from the beginning"),
        ({"p0": {"step": 0}}, None, None, " from the beginning"),
        ({"p0": {"step": 30, "resumedFrom": 20}}, None, 20, " from step 20"),
        ({"p0": {"step": 30, "resumedFrom": 20, "checkpointStep": 25}}, None, 25, " from step 25"),
        ({"p0": {"step": 30}}, 20, 20, " from step 20"),
        ({}, 20, 20, " from step 20"),
    ],
)
def test_what_is_known_of_checkpoints(
    reports: dict[str, dict[str, Any]], written: int | None, step: int | None, words: str
) -> None:
    assert checkpoint_step(observed(reports, written)) == step
    assert origin(observed(reports, written)) == words


@pytest.mark.parametrize("report", [{}, {"step": 7}, {"step": 7, "checkpointStep": 5}])
async def test_what_is_said_of_a_restart_in_place(report: dict[str, Any], golden: Golden) -> None:
    world, agents = await training(build_job(evaluator=False))
    if report:
        agents.report("worker-0", **report)
    agents.fail("worker-1", message="boom")
    await world.settle()
    golden(world.status.message)


async def test_the_leading_agent_knows_a_checkpoint_that_the_controller_has_not_heard_of(
    golden: Golden,
) -> None:
    world, agents = await training(build_job(evaluator=False))
    agents.fail("worker-1", message="boom", checkpointStep=5)
    await world.settle()
    golden(world.status.message)


@pytest.mark.parametrize("checkpoint", [None, 5])
async def test_what_is_said_of_going_on_after_a_suspension(checkpoint: int | None, golden: Golden) -> None:
    world = await World(build_plain_job(evaluator=False)).started()
    world.cluster.report(world.pod("worker"), {"step": 7, "checkpointStep": checkpoint})
    await world.settle()
    world.edit(suspend=True)
    await world.settle()
    world.let_go()
    await world.settle()
    world.edit(suspend=False)
    await world.settle()
    golden(dict(world.cluster.events)["Resumed"])


async def test_a_job_without_restarts_says_so(golden: Golden) -> None:
    world = await World(build_plain_job(maxRestarts=0, evaluator=False)).started()
    world.cluster.end_pod(world.pod("worker", 0), 1, message="boom")
    await world.settle()
    golden(world.status.message)


async def test_the_node_of_a_failure_is_named(golden: Golden) -> None:
    world, agents = await training(build_job(evaluator=False))
    world.pod("worker", 1)["spec"]["nodeName"] = "gpu-7"
    agents.fail("worker-1", message="boom", step=30)
    await world.settle()
    message = world.status.message
    golden(message)
    assert ("Restarted", message) in world.cluster.events
    assert world.status.first_failure is not None
    assert (world.status.first_failure.node, world.status.first_failure.message) == ("gpu-7", message)


def stall(agents: Agents, **more: Any) -> None:
    told = {"code": None, "reason": "Stalled", "exitCode": None, "step": 40, "message": "no progress for 9 s"}
    agents.fail("worker-1", **{**told, **more})


async def test_the_stack_of_a_stalled_process_is_added_when_it_comes() -> None:
    world, agents = await training(build_job(evaluator=False))
    stall(agents)
    await world.settle()
    assert world.status.first_failure is not None
    assert world.status.first_failure.log_tail == ""
    assert agents.failure is not None
    agents.failure["logTail"] = "Current thread"
    agents.meet()
    await world.settle()
    assert world.status.state == "Running"
    assert world.status.first_failure.log_tail == "Current thread"
    assert world.status.restarts.counted == 1
