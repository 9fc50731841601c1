"""Replicas that delay the others in every step, and when that is reported."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.golden import Golden
from support.world.agents import Agents, training
from support.world.jobs import build_job
from support.world.world import World
from trainjob.api import Straggler
from trainjob.core.stragglers import CAUGHT_UP, NOTICEABLE, SLOW, describe, find_stragglers

EVEN = {"worker-0": 0.2, "worker-1": 0.2, "worker-2": 0.2}


@pytest.mark.parametrize(
    ("earlier", "now", "known", "found"),
    [
        ({}, {}, (), {}),
        ({"worker-0": 9.0}, {"worker-0": 9.0}, (), {}),
        (EVEN, EVEN, (), {}),
        ({**EVEN, "worker-2": 0.4}, {**EVEN, "worker-2": 0.4}, (), {"worker-2": 0.2}),
        # One look is no news, whichever it is.
        (EVEN, {**EVEN, "worker-2": 0.4}, (), {}),
        ({**EVEN, "worker-2": 0.4}, EVEN, (), {}),
        ({}, {**EVEN, "worker-2": 0.4}, (), {}),
        # A little slower is not slow; a known one stays until it has caught up.
        ({**EVEN, "worker-2": 0.3}, {**EVEN, "worker-2": 0.3}, (), {}),
        (EVEN, {**EVEN, "worker-2": 0.26}, ("worker-2",), {"worker-2": 0.2}),
        (EVEN, {**EVEN, "worker-2": 0.25}, ("worker-2",), {}),
        # Of two, the median of the others is the other one's.
        ({"worker-0": 1.0, "worker-1": 2.0}, {"worker-0": 1.0, "worker-1": 2.0}, (), {"worker-1": 1.0}),
        # Tiny steps differ for no reason.
        ({**EVEN, "worker-2": 0.2}, {"worker-0": 0.001, "worker-1": 0.004}, (), {}),
        # With half of them slow, each stands out only against the fast ones.
        (
            {"worker-0": 0.2, "worker-1": 0.2, "worker-2": 0.9, "worker-3": 0.2},
            {"worker-0": 0.2, "worker-1": 0.2, "worker-2": 0.9, "worker-3": 0.3},
            (),
            {"worker-2": 0.2},
        ),
    ],
)
def test_who_is_found(
    earlier: dict[str, float], now: dict[str, float], known: tuple[str, ...], found: dict[str, float]
) -> None:
    assert find_stragglers(earlier, now, known) == found


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1e6), max_size=12))
def test_one_replica_waits_and_a_slow_one_is_slower_by_far(work: dict[str, float]) -> None:
    found = find_stragglers(work, work, ())
    assert len(found) < max(len(work), 1), "one of them has to wait"
    for replica, median in found.items():
        assert work[replica] > SLOW * median
        assert work[replica] >= median + NOTICEABLE
    assert set(found) <= set(find_stragglers(work, work, work)), f"{CAUGHT_UP} is less than {SLOW}"


@pytest.mark.parametrize(
    "fields",
    [
        {"replica": "worker-2", "node": "gpu-7", "work_seconds": 0.41, "median_seconds": 0.2},
        {"replica": "chief-0", "work_seconds": 0.041, "median_seconds": 0.0204},
    ],
)
def test_the_sentence(fields: dict[str, Any], golden: Golden) -> None:
    golden(describe(Straggler(**fields)))


async def look(world: World, agents: Agents, work: list[float], *, step: int, seconds: int = 31) -> None:
    """All report their steps; the status has them within half a minute."""
    for index, own in enumerate(work):
        agents.report(f"worker-{index}", step=step, stepSeconds=max(work), workSeconds=own, inputSeconds=0.1)
    await world.pass_time(seconds)


def events_of(world: World) -> list[str]:
    return [message for reason, message in world.cluster.events if reason == "Straggler"]


async def test_a_straggler_is_named_with_its_node_and_reported_once_an_attempt() -> None:
    world, agents = await training(build_job(workers=3, evaluator=False))
    world.pod("worker", 2)["spec"]["nodeName"] = "gpu-7"
    await look(world, agents, [0.2, 0.2, 0.41], step=1, seconds=1)
    assert world.status.stragglers == ()
    assert world.status.progress is not None
    assert world.status.progress.work_seconds == {"worker-0": 0.2, "worker-1": 0.2, "worker-2": 0.41}
    assert world.status.progress.step_seconds["worker-0"] == 0.41
    assert world.status.progress.input_seconds["worker-2"] == 0.1
    await look(world, agents, [0.2, 0.2, 0.41], step=200)
    (found,) = world.status.stragglers
    assert (found.replica, found.node, found.work_seconds, found.median_seconds) == (
        "worker-2",
        "gpu-7",
        0.41,
        0.2,
    )
    assert events_of(world) == [describe(found)]
    await look(world, agents, [0.2, 0.2, 0.28], step=400)
    assert [each.replica for each in world.status.stragglers] == ["worker-2"], "it hasn't caught up"
    await look(world, agents, [0.2, 0.2, 0.2], step=600)
    assert world.status.stragglers == ()
    for step in (800, 1000):
        await look(world, agents, [0.2, 0.2, 0.41], step=step)
    assert [each.replica for each in world.status.stragglers] == ["worker-2"]
    assert len(events_of(world)) == 1


async def test_a_new_attempt_begins_without_stragglers_and_reports_them_again() -> None:
    world, agents = await training(build_job(workers=2, evaluator=False))
    for step in (1, 2):
        await look(world, agents, [0.2, 0.9], step=step)
    assert len(world.status.stragglers) == 1
    agents.fail("worker-1", step=3)
    agents.reports.clear()
    agents.meet()
    await world.settle()
    await look(world, agents, [0.2, 0.9], step=3, seconds=1)
    assert world.status.stragglers == ()
    await look(world, agents, [0.2, 0.9], step=4)
    assert len(world.status.stragglers) == 1
    assert len(events_of(world)) == 2


async def test_a_new_controller_reports_nothing_twice() -> None:
    world, agents = await training(build_job(workers=2, evaluator=False))
    for step in (1, 2):
        await look(world, agents, [0.2, 0.9], step=step)
    world.restart_controller()
    await look(world, agents, [0.2, 0.9], step=3)
    assert len(events_of(world)) == 1
