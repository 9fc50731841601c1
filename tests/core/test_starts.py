"""Pods on their way to training: what people read of it, and what is done about it."""

from __future__ import annotations

from typing import Any

import pytest

from support.golden import Golden
from support.world.agents import Agents, training
from support.world.jobs import build_job, build_plain_job
from support.world.world import World
from trainjob.core.conditions import find_condition

BUILDERS = [build_job, build_plain_job]


def states_of(world: World) -> tuple[str | None, int, int]:
    restarts = world.status.restarts
    return world.status.state, restarts.counted, restarts.not_counted


@pytest.mark.parametrize("build", BUILDERS)
async def test_a_failing_init_container_backs_off_and_counts_once_for_all_pods(
    build: Any, golden: Golden
) -> None:
    world = World(build(workers=4, maxRestarts=2, evaluator=False))
    await world.settle()
    for delay in (10, 20):
        old = {p["metadata"]["name"] for p in world.pods}
        for index in range(4 if build is build_job else 1):
            world.cluster.fail_init(world.pod("worker", index), message="permission denied")
            await world.settle()
            world.let_go()
        await world.settle()
        golden(world.status.message)
        assert states_of(world) == ("Restarting", delay // 10, 0)
        await world.pass_time(delay - 1)
        assert world.pods == []
        await world.pass_time(1)
        assert len(world.pods) == 4
        assert old.isdisjoint(p["metadata"]["name"] for p in world.pods)
    world.cluster.fail_init(world.pod("worker", 3), message="permission denied")
    await world.settle()
    assert world.status.state in ("Failing", "Failed")
    golden(world.status.message)


async def test_a_pod_that_fails_at_its_start_later_joins_the_restart() -> None:
    """Its image took longer than the others'."""
    world = World(build_job(workers=2, evaluator=False))
    agents = Agents(world)
    await world.settle()
    late = world.pod("worker", 1)
    world.cluster.fail_init(world.pod("worker", 0))
    await world.pass_time(10)
    assert world.pod("worker", 1)["metadata"]["name"] == late["metadata"]["name"]
    world.cluster.fail_init(late)
    await world.settle()
    assert world.pod("worker", 1)["metadata"]["name"] != late["metadata"]["name"]
    world.each(world.cluster.run_pod)
    agents.meet()
    await world.settle()
    assert states_of(world) == ("Running", 1, 0)


async def test_a_missing_program_ends_the_first_attempt(golden: Golden) -> None:
    world = World(build_job(evaluator=False))
    await world.settle()
    message = 'container init: exec: "python3": executable file not found in $PATH: unknown'
    world.cluster.end_pod(world.pod("worker", 0), 128, reason="StartError", message=message)
    await world.settle()
    golden(world.status.message)


async def test_an_evaluators_init_container_backs_off_too() -> None:
    world = World(build_job())
    await world.settle()
    world.cluster.fail_init(world.pod("evaluator"))
    await world.pass_time(9)
    assert len([p for p in world.pods if "evaluator" in p["metadata"]["name"]]) == 1
    before = world.pod("evaluator")["metadata"]["name"]
    await world.pass_time(1)
    assert world.pod("evaluator")["metadata"]["name"] != before


async def test_an_evaluator_that_does_not_start_says_why_beside_training_and_after_it(golden: Golden) -> None:
    world = World(build_job())
    agents = Agents(world)
    await world.settle()
    world.each(world.cluster.run_pod, "worker")
    agents.meet()
    world.cluster.hold_pod(world.pod("evaluator"), "ImagePullBackOff", "no such image")
    await world.pass_time(60)
    assert world.status.state == "Running"
    golden(world.status.message)
    world.each(lambda pod: world.cluster.end_pod(pod, 0), "worker")
    await world.pass_time(60)
    assert world.status.state == "Evaluating"
    golden(world.status.message)
    world.cluster.run_pod(world.pod("evaluator"))
    await world.pass_time(60)
    assert "can't start" not in (world.status.message or "")


RUNS = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
SINCE = "2026-01-01T00:00:00Z"
MOUNT = 'MountVolume.SetUp failed for volume "data" : configmap "nothing" not found'


def event(reason: str, message: str, kind: str = "Normal") -> dict[str, Any]:
    return {"type": kind, "reason": reason, "message": message, "lastTimestamp": SINCE}


@pytest.mark.parametrize(
    ("state", "newest"),
    [
        (RUNS, None),
        (RUNS, event("Unhealthy", "Startup probe failed: 503", "Warning")),
        (None, event("FailedMount", MOUNT, "Warning")),
        (None, event("Pulling", 'Pulling image "tf:1"')),
        (None, event("Scheduled", "Successfully assigned")),
        (None, None),
    ],
)
async def test_a_pod_with_a_node_is_never_replaced_and_says_what_it_does(
    state: dict[str, Any] | None, newest: dict[str, Any] | None, golden: Golden
) -> None:
    world = World(build_job(startTimeoutSeconds=20, evaluator=False))
    await world.settle()
    names = [p["metadata"]["name"] for p in world.pods]
    if newest is not None:
        world.cluster.pod_events = {names[0]: newest}
    waiting = {"waiting": {"reason": "PodInitializing"}}
    for pod in world.pods:
        world.cluster.set_init(pod, state or waiting)
    await world.pass_time(29)
    assert world.status.state == "Pending"
    golden(world.status.message)
    await world.pass_time(1)
    told = world.status.message
    golden(told)
    await world.pass_time(300)
    assert [p["metadata"]["name"] for p in world.pods] == names
    assert (world.status.message, *states_of(world)) == (told, "Pending", 0, 0)
    running = find_condition(world.status, "Running")
    assert running is not None
    assert running.reason == "SlowStart"


@pytest.mark.parametrize("held", ["ImagePullBackOff", "CreateContainerConfigError", "slow"])
async def test_a_job_with_one_pod_without_a_node_makes_room_whatever_its_other_pods_do(
    held: str, golden: Golden
) -> None:
    """Two jobs that are half placed each would block each other."""
    world = World(build_job(startTimeoutSeconds=60, evaluator=False))
    await world.settle()
    names = {p["metadata"]["name"] for p in world.pods}
    if held == "slow":
        world.cluster.set_init(world.pod("worker", 0), RUNS)
    else:
        world.cluster.hold_pod(world.pod("worker", 0), held, "why")
    world.cluster.hold_pod(world.pod("worker", 1), "Unschedulable", "no room")
    await world.pass_time(61)
    assert (world.status.state, world.status.restarts.not_counted) == ("Restarting", 1)
    golden(world.status.message)
    world.let_go()
    await world.settle()
    assert names.isdisjoint(p["metadata"]["name"] for p in world.pods)


async def test_the_time_without_a_node_is_the_pods_own() -> None:
    world, agents = await training(build_job(startTimeoutSeconds=60, evaluator=False))
    agents.phase = "meeting"
    world.cluster.evict_pod(world.pod("worker", 1))
    agents.tell()
    await world.settle()
    world.cluster.set_init(world.pod("worker", 1), RUNS)
    await world.pass_time(300)
    world.cluster.evict_pod(world.pod("worker", 1))
    await world.pass_time(5)
    world.cluster.hold_pod(world.pod("worker", 1), "Unschedulable", "no room")
    await world.pass_time(50)
    assert "StartTimeout" not in dict(world.cluster.events)
    await world.pass_time(20)
    assert "StartTimeout" in dict(world.cluster.events)


async def test_a_worker_that_never_joins_is_named_and_keeps_its_pod(golden: Golden) -> None:
    world = World(build_job(startTimeoutSeconds=60, evaluator=False))
    agents = Agents(world, lost={"worker-1": 5.0}, state_of_lost="absent")
    await world.settle()
    names = [p["metadata"]["name"] for p in world.pods]
    world.each(world.cluster.run_pod)
    agents.tell()
    await world.pass_time(120)
    golden(world.status.message)
    assert [p["metadata"]["name"] for p in world.pods] == names
