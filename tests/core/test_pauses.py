"""Training that takes no steps: what is said of it, and when."""

from __future__ import annotations

from typing import Any

import pytest

from support.golden import Golden
from support.world.agents import training
from support.world.jobs import build_job


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"state": "starting", "logLine": "connecting to 10.0.0.1:2222"}, {"state": "importing"}),
        ({"state": "training", "step": 0}, {"state": "training", "step": 0}),
        ({"state": "preparing"}, {"state": "starting"}),
        ({"state": "training", "step": 0}, {"state": "rereading", "rereadBatches": 700}),
        ({"state": "training", "step": 7}, {"state": "training", "step": 7}),  # a loop of its own
        (None, None),
    ],
)
async def test_no_first_step(one: dict[str, Any] | None, two: dict[str, Any] | None, golden: Golden) -> None:
    world, agents = await training(build_job(evaluator=False))
    if one is not None and two is not None:
        agents.report("worker-0", **one)
        agents.report("worker-1", **two)
    await world.pass_time(599)
    golden(world.status.message)
    await world.pass_time(32)
    assert world.status.state == "Running"
    golden(world.status.message)
    agents.report("worker-0", state="training", step=1, stepSeconds=0.1)
    await world.pass_time(31)
    golden(world.status.message)


async def test_a_process_of_this_machine_is_quoted_though_its_report_is_read_from_its_file(
    golden: Golden,
) -> None:
    world, agents = await training(build_job(evaluator=False))
    agents.report("worker-0", state="starting", logLine="connecting to 127.0.0.1:2222")
    world.cluster.report(world.pod("worker", 0), {"state": "starting"})
    await world.pass_time(631)
    golden(world.status.message)


@pytest.mark.parametrize(
    ("step_seconds", "state", "after"),
    [(0.2, "training", 300), (60.0, "training", 600), (0.2, "evaluating", 300), (0.2, "saving", 300)],
)
async def test_no_step_for_ten_times_the_usual_time(
    step_seconds: float, state: str, after: float, golden: Golden
) -> None:
    world, agents = await training(build_job(evaluator=False))

    async def report(step: int, state: str) -> None:
        for name in ("worker-0", "worker-1"):
            agents.report(name, state=state, step=step, stepSeconds=step_seconds)
        await world.pass_time(40)

    await report(10, "training")
    await report(40, "training")
    await report(40, state)
    assert world.status.progress is not None
    assert world.status.progress.since is not None
    await world.pass_time(after - 41 - (40 if state == "training" else 0))
    golden(world.status.message)
    await world.pass_time(42)
    golden(world.status.message)
    assert world.status.restarts.not_counted == 0
    await report(41, "training")
    golden(world.status.message)


async def test_pods_whose_agents_nobody_has_heard_say_nothing_about_steps(golden: Golden) -> None:
    world, _ = await training(build_job(evaluator=False))
    world.cluster.forget_answers()
    await world.pass_time(7200)
    golden(world.status.message)
