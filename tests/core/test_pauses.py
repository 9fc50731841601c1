"""Training that takes no steps: what is said of it, and when."""

from __future__ import annotations

from typing import Any

import pytest

from support.world.agents import training
from support.world.jobs import build_job

T0 = "2026-01-01T00:00:00Z"
RUNS = "training on 2 workers"
BOTH = "worker 0 and 1 more: training at step 40"


@pytest.mark.parametrize(
    ("one", "two", "message"),
    [
        (
            {"state": "starting", "logLine": "connecting to 10.0.0.1:2222"},
            {"state": "importing"},
            f"no first step since {T0}: worker 0: starting (connecting to 10.0.0.1:2222); "
            "worker 1: importing",
        ),
        (
            {"state": "training", "step": 0},
            {"state": "training", "step": 0},
            f"no first step since {T0}: worker 0 and 1 more: training at step 0",
        ),
        ({"state": "preparing"}, {"state": "starting"}, f"worker 0: preparing, since {T0}"),
        (
            {"state": "training", "step": 0},
            {"state": "rereading", "rereadBatches": 700},
            f"worker 1: rereading, 700 batches so far, since {T0}",
        ),
        (
            {"state": "training", "step": 7},  # a loop of its own
            {"state": "training", "step": 7},
            f"no step since {T0}: worker 0 and 1 more: training at step 7",
        ),
        (None, None, f"no first step since {T0}: worker 0 and 1 more: no report"),
    ],
)
async def test_no_first_step(one: dict[str, Any] | None, two: dict[str, Any] | None, message: str) -> None:
    world, agents = await training(build_job(evaluator=False))
    if one is not None and two is not None:
        agents.report("worker-0", **one)
        agents.report("worker-1", **two)
    await world.pass_time(599)
    assert world.status.message == RUNS
    await world.pass_time(32)
    assert (world.status.state, world.status.message) == ("Running", f"{RUNS}; {message}")
    agents.report("worker-0", state="training", step=1, stepSeconds=0.1)
    await world.pass_time(31)
    assert world.status.message == RUNS


async def test_a_process_of_this_machine_is_quoted_though_its_report_is_read_from_its_file() -> None:
    world, agents = await training(build_job(evaluator=False))
    agents.report("worker-0", state="starting", logLine="connecting to 127.0.0.1:2222")
    world.cluster.report(world.pod("worker", 0), {"state": "starting"})
    await world.pass_time(631)
    assert "worker 0: starting (connecting to 127.0.0.1:2222)" in (world.status.message or "")


@pytest.mark.parametrize(
    ("step_seconds", "state", "after", "message"),
    [
        (0.2, "training", 300, "no step since {since} (one takes 0.20 s): " + BOTH),
        (60.0, "training", 600, "no step since {since} (one takes 60.00 s): " + BOTH),
        (0.2, "evaluating", 300, "worker 0 and 1 more: evaluating at step 40, since {since}"),
        (0.2, "saving", 300, "worker 0 and 1 more: saving at step 40, since {since}"),
    ],
)  # fmt: skip
async def test_no_step_for_ten_times_the_usual_time(
    step_seconds: float, state: str, after: float, message: str
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
    since = f"{world.status.progress.since:%Y-%m-%dT%H:%M:%SZ}"
    await world.pass_time(after - 41 - (40 if state == "training" else 0))
    assert world.status.message == RUNS
    await world.pass_time(42)
    assert world.status.message == f"{RUNS}; {message.format(since=since)}"
    assert world.status.restarts.not_counted == 0
    await report(41, "training")
    assert world.status.message == RUNS


async def test_pods_whose_agents_nobody_has_heard_say_nothing_about_steps() -> None:
    world, _ = await training(build_job(evaluator=False))
    world.cluster.forget_answers()
    await world.pass_time(7200)
    assert world.status.message == RUNS
