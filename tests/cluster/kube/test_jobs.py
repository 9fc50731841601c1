"""The cache of TrainJobs, fed by a watch that forgets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import permutations
from typing import Any

import pytest

from support.kube.api_server import FakeApiServer, failing
from support.kube.kube_cluster import open_client, running, until
from support.world.jobs import build_job
from trainjob.cluster import JobKey
from trainjob.cluster.kube.informer import MOST_BYTES, JobCache

KEY = JobKey("default", "digits")
PLACE = ("default", "digits")


class Cached:
    """A cache and the server behind it."""

    def __init__(self, server: FakeApiServer, cache: JobCache, told: list[JobKey]) -> None:
        self.server, self.cache, self.told = server, cache, told

    def uids(self) -> set[str]:
        return {job["metadata"]["uid"] for job in self.cache.store.items()}

    def is_level(self) -> bool:
        return {
            (j["metadata"]["uid"], j["metadata"]["resourceVersion"]) for j in self.cache.store.items()
        } == {(j["metadata"]["uid"], j["metadata"]["resourceVersion"]) for j in self.server.all("TrainJob")}


@asynccontextmanager
async def open_cache(*jobs: dict[str, Any], sweep_seconds: float = 300.0) -> AsyncIterator[Cached]:
    async with FakeApiServer().serve() as server:
        for job in jobs:
            server.put(job)
        async with open_client(server.url) as api:
            told: list[JobKey] = []
            cache = JobCache(api, None, told.append, sweep_seconds=sweep_seconds, gather_seconds=0.0)
            async with running(cache.run()):
                await cache.synced.wait()
                yield Cached(server, cache, told)


async def test_it_is_filled_before_anybody_watches() -> None:
    async with open_cache(build_job(), build_job(name="letters")) as cached:
        assert cached.is_level()
        assert sorted(key.name for key in cached.told) == ["digits", "letters"]


def pages_of(server: FakeApiServer) -> list[int]:
    return [
        int(seen.query["limit"]) for seen in server.seen if seen.kind == "TrainJob" and "limit" in seen.query
    ]


async def test_small_jobs_come_in_ever_larger_pages() -> None:
    async with open_cache(
        *(build_job(name=f"job-{number}", uid=f"uid-{number}") for number in range(400))
    ) as cached:
        assert cached.is_level()
        assert pages_of(cached.server) == [10, 20, 40, 80, 100, 100, 100]


async def test_a_page_of_large_jobs_is_asked_for_again_in_parts() -> None:
    large = [build_job(name=f"job-{number:02}", uid=f"uid-{number}") for number in range(40)]
    for job in large[15:]:
        job["metadata"]["annotations"] = {"note": "x" * (MOST_BYTES // 15)}
    async with open_cache(*large) as cached:
        assert cached.is_level()
        assert pages_of(cached.server) == [10, 20, 10, 10, 10]


async def test_ghosts_are_found_when_the_watch_has_begun_again() -> None:
    async with open_cache(build_job(), build_job(name="letters")) as cached:
        cached.server.remove("TrainJob", "digits")
        cached.cache.ask_for_sweep()
        await until(cached.is_level)
        assert cached.told[-1] == KEY


async def test_ghosts_are_found_in_the_end_even_if_nothing_hints_at_them() -> None:
    async with open_cache(build_job(), sweep_seconds=0.01) as cached:
        cached.server.remove("TrainJob", "digits")
        await until(cached.is_level)


async def test_a_job_that_the_watch_kept_to_itself_is_found() -> None:
    async with open_cache(build_job()) as cached:
        cached.server.put(build_job(workers=3))
        cached.server.put(build_job(name="letters"))
        cached.cache.ask_for_sweep()
        await until(cached.is_level)
        job = cached.cache.store.get(PLACE)
        assert job is not None
        assert job["spec"]["worker"]["replicas"] == 3


async def test_a_sweep_asks_for_metadata_alone() -> None:
    async with open_cache(build_job()) as cached:
        cached.cache.ask_for_sweep()
        await until(lambda: len(cached.server.seen) == 2)
        assert "PartialObjectMetadataList" in cached.server.seen[-1].query["accept"]
        job = cached.cache.store.get(PLACE)
        assert job is not None
        assert "spec" in job


async def test_a_sweep_that_fails_is_made_up_for() -> None:
    async with open_cache(build_job()) as cached:
        cached.server.remove("TrainJob", "digits")
        cached.server.fault = lambda _seen: failing(500, "InternalError")
        cached.cache.ask_for_sweep()
        await until(lambda: len(cached.server.seen) == 3)
        cached.server.fault = lambda _seen: None
        await until(cached.is_level)


def story(server: FakeApiServer) -> list[tuple[str, dict[str, Any]]]:
    """The old job's change and end, the new one's begin and change, as a watch reports them."""
    events = [("MODIFIED", server.put(build_job(workers=3)))]
    server.remove("TrainJob", "digits")
    events.append(("DELETED", server.log[-1][2]))
    events.append(("ADDED", server.put(build_job())))
    events.append(("MODIFIED", server.put(build_job(workers=4))))
    return events


@pytest.mark.parametrize("order", list(permutations(range(4))))
async def test_events_of_two_jobs_of_one_name_may_come_in_any_order(order: tuple[int, ...]) -> None:
    async with open_cache(build_job()) as cached:
        events = story(cached.server)
        for index in order:
            cached.cache.take(*events[index])
        assert cached.is_level()


async def test_the_watchs_own_objects_stay_as_they_are() -> None:
    async with open_cache() as cached:
        job = cached.server.put(build_job())
        cached.cache.take("ADDED", job)
        assert "managedFields" in job["metadata"]
        known = cached.cache.store.get(PLACE)
        assert known is not None
        assert "managedFields" not in known["metadata"]
