"""Lives of jobs: with any events, and the controller killed at any time, the rules hold."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from support.world.life import AGENT_KINDS, KINDS, Schedule, live, live_to_the_end, schedules
from trainjob.core.observed import Snapshot, read_observed
from trainjob.core.plan import plan

LIVES = settings().max_examples * 6 // 10
"""Of each kind; a profile may ask for more."""


def ends_as_the_rules_allow(schedule: Schedule, *, in_place: bool) -> None:
    life = asyncio.run(live_to_the_end(schedule, in_place=in_place))
    before = list(life.world.cluster.writes)
    life.world.restart_controller()
    asyncio.run(life.world.settle())
    assert life.world.cluster.writes == before, "a finished job is written to again"


@settings(max_examples=LIVES)
@given(schedules(KINDS))
def test_every_life_of_a_job_ends_as_the_rules_allow(schedule: Schedule) -> None:
    ends_as_the_rules_allow(schedule, in_place=False)


@settings(max_examples=LIVES)
@given(schedules([*KINDS, *AGENT_KINDS]))
def test_every_life_with_agents_ends_as_the_rules_allow(schedule: Schedule) -> None:
    ends_as_the_rules_allow(schedule, in_place=True)


@settings(max_examples=LIVES // 2)
@given(schedules(KINDS), st.randoms(use_true_random=False))
def test_the_order_of_pods_is_irrelevant(schedule: Schedule, random: Any) -> None:
    world = asyncio.run(live(schedule, in_place=False)).world
    job, pods = world.cluster.job(world.key), world.pods
    shuffled = random.sample(pods, len(pods))
    first = plan(read_observed(Snapshot(job, pods)), world.now)
    assert plan(read_observed(Snapshot(job, shuffled)), world.now) == first
