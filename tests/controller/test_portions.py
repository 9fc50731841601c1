"""Large jobs: their pods are built and sent a portion at a time, and other jobs continue in between."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.world.jobs import build_job, build_plain_job
from support.world.world import World
from trainjob.cluster import AlreadyExists, Refused, Unavailable
from trainjob.core import manifests as render

WORKERS = 200
PORTION = 32
"""As `trainjob.controller.reconciler.PORTION` has it."""


class Bodies:
    """Counts the pods that have been built and not been sent yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.alive = self.most = self.built = 0
        self._render = render.render_template
        monkeypatch.setattr(render, "render_template", self._build)

    def _build(self, name: str, **values: Any) -> dict[str, Any]:
        if name == "pod.yaml.j2":
            self.built += 1
            self.alive += 1
            self.most = max(self.most, self.alive)
        return self._render(name, **values)

    def sent(self, operation: str, manifest: dict[str, Any]) -> None:
        if operation == "create" and manifest["kind"] == "Pod":
            self.alive -= 1


async def test_a_portion_of_the_pods_is_built_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = Bodies(monkeypatch)
    world = World(build_job(workers=WORKERS))
    world.cluster.fault_after = bodies.sent
    await world.settle()
    assert len(world.pods) == bodies.built == WORKERS + 1
    assert bodies.most <= PORTION


@pytest.mark.parametrize(("workers", "told_after"), [(2, 3), (WORKERS, 0)])
async def test_a_large_job_says_what_it_does_before_its_pods_are_made(workers: int, told_after: int) -> None:
    world, pods_made = World(build_job(workers=workers)), []
    world.cluster.fault = lambda operation, _: (
        pods_made.append(len(world.pods)) if operation == "write_status" else None
    )
    await world.settle()
    assert pods_made[0] == told_after
    assert len(world.pods) == workers + 1


@pytest.mark.parametrize(("workers", "rests"), [(2, False), (WORKERS, True)])
async def test_only_a_large_job_rests_between_two_passes(workers: int, rests: bool) -> None:
    world = World(build_job(workers=workers))
    await world.settle()
    assert (world.reconciler.rest(world.key) > 0) is rests


async def test_pods_are_sent_before_what_nobody_needs_until_they_run_and_their_token_last() -> None:
    world = World(build_job())
    world.cluster.fault_after = lambda _, manifest: kinds.append(manifest["kind"])
    kinds: list[str] = []
    await world.reconciler.reconcile(world.key)
    assert list(dict.fromkeys(kinds)) == ["Pod", "Service", "Secret"]


async def test_what_can_not_be_created_yet_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = Bodies(monkeypatch)
    world = World(build_plain_job(workers=WORKERS, evaluator=False))
    world.cluster.fault = lambda operation, manifest: (
        Refused("Forbidden", "exceeded quota") if (operation, manifest["kind"]) == ("create", "Pod") else None
    )
    await world.settle()
    built = bodies.built
    await world.reconciler.reconcile(world.key)
    assert bodies.built == built, "every event of a job that waits would build all of its pods"


async def test_a_quota_is_asked_for_few_pods_more_than_it_has_room_for() -> None:
    world = World(build_plain_job(workers=WORKERS, evaluator=False))
    refused: list[str] = []

    def quota(operation: str, manifest: dict[str, Any]) -> Exception | None:
        if (operation, manifest["kind"]) != ("create", "Pod") or len(world.pods) < 50:
            return None
        refused.append(manifest["metadata"]["name"])
        return Refused("Forbidden", "exceeded quota: pods=50")

    world.cluster.fault = quota
    await world.reconciler.reconcile(world.key)
    assert len(world.pods) == 50
    assert 0 < len(refused) <= PORTION
    await world.settle()
    assert "exceeded quota" in (world.status.message or "")


async def test_an_api_server_that_is_away_is_not_asked_for_every_pod() -> None:
    world = World(build_plain_job(workers=WORKERS, evaluator=False))
    asked: list[str] = []

    def away(operation: str, manifest: dict[str, Any]) -> Exception | None:
        if (operation, manifest["kind"]) != ("create", "Pod"):
            return None
        asked.append(manifest["metadata"]["name"])
        return Unavailable("no answer")

    world.cluster.fault = away
    with pytest.raises(Unavailable):
        await world.reconciler.reconcile(world.key)
    assert len(asked) == PORTION


async def test_a_name_that_is_in_use_delays_no_other_pod() -> None:
    world = World(build_plain_job(workers=WORKERS, evaluator=False))
    world.cluster.fault = lambda operation, manifest: (
        AlreadyExists("taken")
        if operation == "create" and "-worker-0-" in manifest["metadata"]["name"]
        else None
    )
    with pytest.raises(AlreadyExists):
        await world.reconciler.reconcile(world.key)
    assert len(world.pods) == WORKERS - 1


@pytest.mark.parametrize("what", ["created", "stopped"])
async def test_other_jobs_continue_between_two_portions(what: str) -> None:
    world = World(build_plain_job(workers=WORKERS, evaluator=False))
    if what == "stopped":
        await world.started()
        world.edit(suspend=True)
    most = 0

    async def others() -> None:
        nonlocal most
        while True:
            before = len(world.cluster.writes)
            await asyncio.sleep(0)
            most = max(most, len(world.cluster.writes) - before)

    beside = asyncio.create_task(others())
    await asyncio.sleep(0)
    await world.reconciler.reconcile(world.key)
    beside.cancel()
    assert len(world.cluster.writes) > WORKERS
    assert most <= PORTION
