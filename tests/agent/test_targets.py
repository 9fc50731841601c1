"""Which targets the leading agent accepts: of successive controllers, and of different versions."""

from __future__ import annotations

from typing import Any

import pytest

from support.agents.worker_group import Simulation
from support.world.jobs import build_job
from support.world.world import World
from trainjob.core.settings import Settings
from trainjob_trainer.agent.worker_group import TARGET_SECONDS
from trainjob_trainer.contract.targets import MalformedMessage, Target

BEFORE: dict[str, Any] = {
    "world": {"worker": 2},
    "without": [],
    "incarnations": {"worker-0": 1, "worker-1": 1},
    "maxRestarts": 3,
    "stallTimeoutSeconds": None,
    "restarts": {
        "attempt": 0,
        "counted": 0,
        "notCounted": 0,
        "reset": 0,
        "sinceProgress": 0,
        "furthestStep": None,
    },
}
"""A target as the version before sends it, with all keys that an agent of that version reads."""


async def target_of(lease: int, **spec: Any) -> dict[str, Any]:
    """The target of a controller that acquired the Lease after so many others, for the edited spec."""
    world = World(build_job(evaluator=False), Settings(lease=lease))
    await world.settle()
    if spec:
        world.edit(**spec)
        await world.settle()
    target = world.cluster.targets[world.key]
    assert target is not None
    return dict(target)


def gathered() -> Simulation:
    simulation = Simulation({"worker": 2})
    simulation.gather()
    return simulation


async def test_a_target_holds_its_lease_and_generation() -> None:
    assert Target.from_json(await target_of(0)).version == (0, 1)
    assert Target.from_json(await target_of(4)).version == (4, 1)
    assert Target.from_json(await target_of(4, maxRestarts=9)).version == (4, 2)


async def test_an_agent_of_the_version_before_finds_all_its_keys() -> None:
    target = await target_of(4)
    assert {key: target[key] for key in BEFORE} == BEFORE
    assert set(target) - set(BEFORE) == {"lease", "generation", "memoryGrows"}


def test_a_target_of_the_version_before_is_read() -> None:
    target = Target.from_json(BEFORE)
    assert (target.version, target.world, target.max_restarts) == ((0, 0), {"worker": 2}, 3)
    assert not target.memory_grows


@pytest.mark.parametrize("value", [-1, "4", 1.5, True, None])
@pytest.mark.parametrize("key", ["lease", "generation"])
def test_a_version_that_is_no_number_is_refused(key: str, value: Any) -> None:
    with pytest.raises(MalformedMessage, match=key):
        Target.from_json({**BEFORE, key: value})


@pytest.mark.parametrize(
    ("version", "silence", "is_taken"),
    [
        ((2, 5), 0.0, True),
        ((2, 6), 0.0, True),
        ((3, 1), 0.0, True),  # another leader, whose cache may be behind for a moment
        ((2, 4), 0.0, False),
        ((1, 9), 0.0, False),
        ((0, 0), 0.0, False),
        ((1, 9), TARGET_SECONDS - 1, False),
        ((1, 9), TARGET_SECONDS, True),
        ((0, 0), TARGET_SECONDS, True),
    ],
)
def test_which_targets_are_accepted(version: tuple[int, int], silence: float, is_taken: bool) -> None:
    simulation = gathered()
    simulation.set_target(world={"worker": 2}, max_restarts=5, lease=2, generation=5)
    simulation.tick(silence)
    lease, generation = version
    simulation.set_target(world={"worker": 1}, max_restarts=7, lease=lease, generation=generation)
    group = simulation.group
    assert (group.meeting.target.world, group.budget.max_restarts) == (
        ({"worker": 1}, 7) if is_taken else ({"worker": 2}, 5)
    )


def test_a_deposed_controllers_target_is_rejected_while_its_successor_is_active() -> None:
    simulation = gathered()
    for _ in range(100):
        simulation.set_target(world={"worker": 2}, lease=1, generation=1)
        simulation.tick(5.0)
        simulation.set_target(world={"worker": 1}, lease=0, generation=1)
    assert simulation.group.meeting.target.world == {"worker": 2}
    assert simulation.attempts == [1]


async def test_running_jobs_survive_an_upgrade_and_a_rollback() -> None:
    """Training never stops; the target of a controller of the version before applies after two minutes."""
    simulation = gathered()
    simulation.handle(Target.from_json(BEFORE))
    upgraded = await target_of(4)
    simulation.handle(Target.from_json(upgraded))
    assert simulation.group.meeting.target.version == (4, 1)
    rolled_back: Target = Target.from_json({**BEFORE, "maxRestarts": 9})
    for _ in range(int(TARGET_SECONDS) // 5):
        simulation.handle(rolled_back)
        assert simulation.group.budget.max_restarts == 3
        simulation.tick(5.0)
    simulation.handle(rolled_back)
    assert simulation.group.budget.max_restarts == 9
    simulation.handle(Target.from_json(upgraded))
    assert simulation.group.meeting.target.version == (4, 1)
    assert (simulation.attempts, simulation.group.phase) == ([1], "running")
