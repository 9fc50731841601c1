from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from support.kube.kube_cluster import running, until
from trainjob.cluster import AlreadyExists, Conflict, NotFound, Unavailable
from trainjob.cluster.kube.resources import Resource
from trainjob.controller.election import Election, Elector, LeaseLost, read_lease

QUICK = Election("trainjob", lease_seconds=1, renew_deadline=0.6, retry_seconds=0.01)


class Shelf:
    """One Lease in memory, with the API server's preconditions."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] | None = None
        self.version = 0
        self.is_away = False
        self.loses_answers = False
        self.renewals = 0

    @property
    def holder(self) -> str:
        return str((self.spec or {}).get("holderIdentity", ""))

    async def get(self, *_: object) -> dict[str, Any]:
        self._answer()
        if self.spec is None:
            raise NotFound("no lease")
        return {"metadata": {"resourceVersion": str(self.version)}, "spec": self.spec}

    async def create(self, _resource: Resource, lease: dict[str, Any]) -> dict[str, Any]:
        self._answer()
        if self.spec is not None:
            raise AlreadyExists("it is there")
        return await self._store(lease["spec"])

    async def replace(self, _resource: Resource, lease: dict[str, Any]) -> dict[str, Any]:
        self._answer()
        if lease["metadata"]["resourceVersion"] != str(self.version):
            raise Conflict("it has changed")
        return await self._store(lease["spec"])

    async def _store(self, spec: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.renewals += 1
        self.spec = spec
        if self.loses_answers:
            raise Unavailable("the answer is lost")
        return await self.get()

    def _answer(self) -> None:
        if self.is_away:
            raise Unavailable("nobody there")


def build_elector(shelf: Shelf, identity: str) -> Elector:
    return Elector(shelf, QUICK, identity=identity, clock=time.monotonic)


async def test_the_first_one_leads_and_renews() -> None:
    shelf = Shelf()
    elector = build_elector(shelf, "a")
    async with running(elector.run()):
        await elector.won.wait()
        await until(lambda: shelf.renewals > 3)
    assert shelf.holder == "a"


async def test_another_one_waits_until_the_lease_is_released() -> None:
    shelf = Shelf()
    first, second = build_elector(shelf, "a"), build_elector(shelf, "b")
    async with running(first.run()):
        await first.won.wait()
        async with running(second.run()):
            seen = shelf.renewals
            await until(lambda: shelf.renewals > seen + 10)
            assert not second.won.is_set()
    async with running(second.run()):
        await first.release()
        await second.won.wait()
    assert shelf.holder == "b"


async def test_a_lease_that_is_not_renewed_is_taken_over() -> None:
    shelf = Shelf()
    first, second = build_elector(shelf, "a"), build_elector(shelf, "b")
    async with running(first.run()):
        await first.won.wait()
    async with running(second.run()):
        await second.won.wait()
    assert shelf.spec is not None
    assert (shelf.holder, shelf.spec["leaseTransitions"]) == ("b", 1)
    assert (first.transitions, second.transitions) == (0, 1)


async def test_a_leader_that_can_not_renew_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf()
    elector = build_elector(shelf, "a")
    run = asyncio.create_task(elector.run())
    await elector.won.wait()
    shelf.is_away = True
    with pytest.raises(LeaseLost, match=r"no renewal for 0\.6 s"):
        await run
    assert "nobody there" in caplog.text


async def test_a_request_that_hangs_is_given_up_at_the_deadline() -> None:
    shelf = Shelf()
    elector = build_elector(shelf, "a")
    run = asyncio.create_task(elector.run())
    await elector.won.wait()

    async def hang(*_: object) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    shelf.get = shelf.replace = hang  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        await run


async def test_a_renewal_whose_answer_was_lost_is_no_loss() -> None:
    shelf = Shelf()
    elector = build_elector(shelf, "a")
    async with running(elector.run()):
        await elector.won.wait()
        shelf.loses_answers = True
        seen = shelf.renewals
        await until(lambda: shelf.renewals > seen)
        shelf.loses_answers = False
        seen = shelf.renewals
        await until(lambda: shelf.renewals > seen + 2)


async def test_a_release_after_a_lost_answer() -> None:
    shelf = Shelf()
    elector = build_elector(shelf, "a")
    async with running(elector.run()):
        await elector.won.wait()
        shelf.loses_answers = True
        seen = shelf.renewals
        await until(lambda: shelf.renewals > seen)
    shelf.loses_answers = False
    await elector.release()
    assert shelf.holder == ""


async def test_another_ones_lease_is_not_released() -> None:
    shelf = Shelf()
    elector = build_elector(shelf, "a")
    async with running(elector.run()):
        await elector.won.wait()
    assert shelf.spec is not None
    shelf.spec = {**shelf.spec, "holderIdentity": "b"}
    await elector.release()
    assert shelf.holder == "b"


async def test_who_never_led_releases_nothing() -> None:
    shelf = Shelf()
    await build_elector(shelf, "a").release()
    assert shelf.spec is None


async def test_a_release_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf()
    elector = build_elector(shelf, "a")
    async with running(elector.run()):
        await elector.won.wait()
    shelf.is_away = True
    with caplog.at_level(logging.WARNING):
        await elector.release()
    assert "could not be released (nobody there)" in caplog.text


async def test_what_people_read_in_the_lease() -> None:
    shelf = Shelf()
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    election = Election("trainjob")
    elector = Elector(shelf, election, identity="a", clock=time.monotonic, wall=lambda: noon)
    async with running(elector.run()):
        await elector.won.wait()
    assert shelf.spec == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-01-31T12:00:00.000000Z",
        "renewTime": "2026-01-31T12:00:00.000000Z",
        "leaseTransitions": 0,
    }


def test_a_lease_made_by_hand() -> None:
    lease = read_lease({"metadata": {"resourceVersion": "7"}})
    assert (lease.holder, lease.seconds, lease.version) == ("", 0, "7")
