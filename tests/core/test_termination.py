from __future__ import annotations

import json

import pytest

from support.world.jobs import build_job
from support.world.world import World

FINISHED = {"state": "finished", "step": 560, "totalSteps": 560, "checkpointStep": 560, "time": 1.0}


async def test_the_status_keeps_what_ended_containers_said_last() -> None:
    world = await World(build_job()).started()
    for worker in (0, 1):
        world.cluster.end_pod(world.pod("worker", worker), 0, message=json.dumps(FINISHED))
    await world.settle()
    scored = {"state": "finished", "evaluation": {"step": 560, "metrics": {"accuracy": 0.99}, "final": True}}
    world.cluster.end_pod(world.pod("evaluator"), 0, message=json.dumps(scored))
    await world.settle()
    status = world.status
    assert status.state == "Complete"
    assert status.progress is not None
    assert (status.progress.step, status.progress.total_steps) == (560, 560)
    assert status.output is not None
    assert status.output.checkpoint_step == 560
    assert status.evaluation is not None
    assert status.evaluation.metrics == {"accuracy": "0.99"}


@pytest.mark.parametrize("message", ["", "bye", "[1]", "{", "null", '{"step": "many", "evaluation": 3}'])
async def test_any_other_message_of_a_good_end_is_left_alone(message: str) -> None:
    world = await World(build_job(evaluator=False)).started()
    world.each(lambda pod: world.cluster.end_pod(pod, 0, message=message))
    await world.settle()
    assert world.status.state == "Complete"


async def test_a_failed_containers_message_is_no_report() -> None:
    world = await World(build_job(evaluator=False, maxRestarts=0)).started()
    world.cluster.end_pod(world.pod("worker", 1), 1, message=json.dumps(FINISHED))
    await world.settle()
    world.let_go()
    await world.settle()
    assert world.status.state == "Failed"
    assert world.status.progress is None or world.status.progress.step is None
