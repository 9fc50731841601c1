"""Whose orders the leading agent takes: of controllers that follow each other, and of different versions."""

from __future__ import annotations

from typing import Any

import pytest
from support_gang import Simulation
from support_jobs import build_job
from support_world import World

from trainjob.core.settings import Settings
from trainjob_trainer.agent.gang import ORDER_SECONDS
from trainjob_trainer.agent.messages import MalformedMessage, Order, read_order

BEFORE: dict[str, Any] = {
    "world": {"worker": 2},
    "without": [],
    "incarnations": {"worker-0": 1, "worker-1": 1},
    "maxRestarts": 3,
    "stallTimeoutSeconds": None,
    "ledger": {
        "attempt": 0,
        "charged": 0,
        "uncharged": 0,
        "refunded": 0,
        "sinceProgress": 0,
        "furthestStep": None,
    },
}
"""An order as the version before sends it, and all that an agent of that version looks for."""


async def target_of(lease: int, **spec: Any) -> dict[str, Any]:
    """What a controller that got the Lease after so many others orders, once the spec was edited."""
    world = World(build_job(evaluator=False), Settings(lease=lease))
    await world.settle()
    if spec:
        world.edit(**spec)
        await world.settle()
    order = world.cluster.targets[world.key]
    assert order is not None
    return dict(order)


def gathered() -> Simulation:
    simulation = Simulation({"worker": 2})
    simulation.gather()
    return simulation


async def test_an_order_says_whose_it_is_and_of_which_spec() -> None:
    assert read_order(await target_of(0)).version == (0, 1)
    assert read_order(await target_of(4)).version == (4, 1)
    assert read_order(await target_of(4, maxRestarts=9)).version == (4, 2)


async def test_an_agent_of_the_version_before_finds_what_it_looks_for() -> None:
    order = await target_of(4)
    assert {key: order[key] for key in BEFORE} == BEFORE
    assert set(order) - set(BEFORE) == {"lease", "generation"}


def test_an_order_of_the_version_before_is_understood() -> None:
    order = read_order(BEFORE)
    assert (order.version, order.world, order.max_restarts) == ((0, 0), {"worker": 2}, 3)


@pytest.mark.parametrize("value", [-1, "4", 1.5, True, None])
@pytest.mark.parametrize("key", ["lease", "generation"])
def test_what_is_no_number_makes_no_order(key: str, value: Any) -> None:
    with pytest.raises(MalformedMessage, match=key):
        read_order({**BEFORE, key: value})


@pytest.mark.parametrize(
    ("version", "silence", "is_taken"),
    [
        ((2, 5), 0.0, True),
        ((2, 6), 0.0, True),
        ((3, 1), 0.0, True),  # another leader, whose cache may be behind for a moment
        ((2, 4), 0.0, False),
        ((1, 9), 0.0, False),
        ((0, 0), 0.0, False),
        ((1, 9), ORDER_SECONDS - 1, False),
        ((1, 9), ORDER_SECONDS, True),
        ((0, 0), ORDER_SECONDS, True),
    ],
)
def test_which_orders_are_taken(version: tuple[int, int], silence: float, is_taken: bool) -> None:
    simulation = gathered()
    simulation.order(world={"worker": 2}, max_restarts=5, lease=2, generation=5)
    simulation.tick(silence)
    lease, generation = version
    simulation.order(world={"worker": 1}, max_restarts=7, lease=lease, generation=generation)
    gang = simulation.gang
    assert (gang.meeting.order.world, gang.budget.max_restarts) == (
        ({"worker": 1}, 7) if is_taken else ({"worker": 2}, 5)
    )


def test_a_deposed_controller_is_not_obeyed_for_as_long_as_its_successor_speaks() -> None:
    simulation = gathered()
    for _ in range(100):
        simulation.order(world={"worker": 2}, lease=1, generation=1)
        simulation.tick(5.0)
        simulation.order(world={"worker": 1}, lease=0, generation=1)
    assert simulation.gang.meeting.order.world == {"worker": 2}
    assert simulation.attempts == [1]


async def test_running_jobs_survive_an_upgrade_and_a_rollback() -> None:
    """Training goes on throughout; what a controller of the version before wants counts after two minutes."""
    simulation = gathered()
    simulation.handle(read_order(BEFORE))
    upgraded = await target_of(4)
    simulation.handle(read_order(upgraded))
    assert simulation.gang.meeting.order.version == (4, 1)
    rolled_back: Order = read_order({**BEFORE, "maxRestarts": 9})
    for _ in range(int(ORDER_SECONDS) // 5):
        simulation.handle(rolled_back)
        assert simulation.gang.budget.max_restarts == 3
        simulation.tick(5.0)
    simulation.handle(rolled_back)
    assert simulation.gang.budget.max_restarts == 9
    simulation.handle(read_order(upgraded))
    assert simulation.gang.meeting.order.version == (4, 1)
    assert (simulation.attempts, simulation.gang.phase) == ([1], "running")
