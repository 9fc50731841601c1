"""After any fault of lists and watches, the cache ends up with what the API server has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web

from support.kube.api_server import FakeApiServer, Seen, failing
from support.kube.kube_cluster import QUICK, open_client, running, until
from trainjob.cluster import JobKey
from trainjob.cluster.kube.cache import Store
from trainjob.cluster.kube.informer import Failed, Informer, Scope, Timeouts, follow
from trainjob.cluster.kube.resources import PODS

LABEL = "trainjob.dev/job"


def build_pod(name: str = "a", *, job: str | None = "digits", **more: Any) -> dict[str, Any]:
    labels = {LABEL: job} if job else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, **more}


def job_of(manifest: dict[str, Any]) -> JobKey | None:
    name = (manifest["metadata"].get("labels") or {}).get(LABEL)
    return JobKey("default", name) if name else None


@dataclass
class Watched:
    """A cache that is kept up to date."""

    server: FakeApiServer
    store: Store
    informer: Informer
    told: list[JobKey]
    restarts: list[None] = field(default_factory=list)

    def is_level(self) -> bool:
        """Return whether the cache has what the server has."""
        there = {(p["metadata"]["name"], p["metadata"]["resourceVersion"]) for p in self._listed()}
        return {
            (p["metadata"]["name"], p["metadata"]["resourceVersion"]) for p in self.store.items()
        } == there

    def requests(self, verb: str) -> list[Seen]:
        """Return the requests of one verb."""
        return [seen for seen in self.server.seen if seen.verb == verb]

    async def ready(self) -> None:
        """Let it fill the store and open its watch."""
        await until(lambda: self.server.open_watches()["Pod"] == 1 and self.is_level())

    def _listed(self) -> list[dict[str, Any]]:
        return [p for p in self.server.all("Pod") if LABEL in p["metadata"]["labels"]]


@asynccontextmanager
async def open_informer(
    prepare: Callable[[FakeApiServer], object] = lambda _server: None, timeouts: Timeouts = QUICK
) -> AsyncIterator[Watched]:
    async with FakeApiServer().serve() as server:
        prepare(server)
        async with open_client(server.url) as api:
            told: list[JobKey] = []
            restarts: list[None] = []
            store = Store(job_of, told.append)
            scope = Scope(PODS, None, LABEL)
            informer = Informer(api, scope, store, restarted=lambda: restarts.append(None), timeouts=timeouts)
            async with running(informer.run()):
                yield Watched(server, store, informer, told, restarts)


def with_pods(count: int) -> Callable[[FakeApiServer], None]:
    def prepare(server: FakeApiServer) -> None:
        for number in range(count):
            server.put(build_pod(f"pod-{number}"))

    return prepare


def with_small_pages(server: FakeApiServer) -> None:
    server.page_limit = 3
    with_pods(10)(server)


async def test_a_list_of_many_pages_fills_the_store() -> None:
    async with open_informer(with_small_pages) as watched:
        await watched.informer.synced.wait()
        assert len(watched.store) == 10
        assert len(watched.requests("list")) == 4
        assert all(seen.query["labelSelector"] == LABEL for seen in watched.requests("list"))
        assert {p["kind"] for p in watched.store.items()} == {"Pod"}
        assert watched.restarts == []


async def test_a_list_that_expires_between_two_pages_is_asked_for_whole() -> None:
    def prepare(server: FakeApiServer) -> None:
        with_small_pages(server)

        def compact_once(seen: Seen) -> None:
            if seen.query.get("continue"):
                server.fault = lambda _seen: None
                server.compact()

        server.fault = compact_once

    async with open_informer(prepare) as watched:
        await watched.informer.synced.wait()
        assert len(watched.store) == 10
        assert "limit" not in watched.requests("list")[-1].query


async def test_what_happens_is_followed() -> None:
    async with open_informer(with_pods(2)) as watched:
        await watched.ready()
        watched.told.clear()
        watched.server.put(build_pod("late"))
        watched.server.put(build_pod("pod-0", status={"phase": "Running"}))
        watched.server.remove("Pod", "pod-1")
        await until(watched.is_level)
        assert watched.told == [JobKey("default", "digits")] * 3
        assert len(watched.requests("list")) == 1


async def test_an_object_may_leave_the_selector_and_come_back() -> None:
    async with open_informer(with_pods(1)) as watched:
        await watched.ready()
        watched.server.put(build_pod("pod-0", job=None))
        await until(lambda: len(watched.store) == 0)
        watched.server.put(build_pod("pod-0"))
        await until(lambda: len(watched.store) == 1)


def end(server: FakeApiServer) -> None:
    server.end_watches()


def drop(server: FakeApiServer) -> None:
    server.drop_watches()


def spoil(server: FakeApiServer) -> None:
    server.send_line("Pod", b"<html>gateway</html>\n")


def expire(server: FakeApiServer) -> None:
    server.send_line("Pod", b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}\n')


def fail(server: FakeApiServer) -> None:
    server.send_line("Pod", b'{"type":"ERROR","object":{"kind":"Status","code":500}}\n')


@pytest.mark.parametrize("interrupt", [end, drop, spoil, expire, fail])
@pytest.mark.parametrize("compacted", [False, True])
async def test_deletions_during_an_interruption_are_found(
    interrupt: Callable[[FakeApiServer], None], compacted: bool
) -> None:
    async with open_informer(with_pods(3)) as watched:
        await watched.ready()
        watched.server.losing = True
        watched.server.remove("Pod", "pod-0")
        watched.server.put(build_pod("pod-1", status={"phase": "Running"}))
        watched.server.put(build_pod("new"))
        watched.server.losing = False
        if compacted:
            watched.server.compact()
        interrupt(watched.server)
        await until(watched.is_level)
        assert watched.store.get(("default", "pod-0")) is None


async def test_after_a_version_that_has_expired_all_is_listed_before_the_next_watch() -> None:
    async with open_informer(with_pods(1)) as watched:
        await watched.ready()
        expire(watched.server)
        await until(lambda: len(watched.requests("watch")) == 2)
        assert len(watched.requests("list")) == 2


async def test_only_what_is_no_regular_end_counts_as_a_restart() -> None:
    async with open_informer(with_pods(1)) as watched:
        for interrupt, restarts in ((drop, 1), (spoil, 2), (expire, 3)):
            # The watch before may still be open on the server's side.
            await until(lambda opened=restarts: len(watched.requests("watch")) == opened)
            await watched.ready()
            interrupt(watched.server)
            await until(lambda expected=restarts: len(watched.restarts) == expected)


async def test_a_frozen_watch_is_noticed() -> None:
    async with open_informer(with_pods(1), replace(QUICK, inactivity=0.1)) as watched:
        await watched.ready()
        watched.server.freeze_watches()
        watched.server.remove("Pod", "pod-0")
        await until(watched.is_level)
        assert watched.restarts


async def test_a_watch_that_falls_silent_again_and_again_is_opened_again_at_once() -> None:
    """Its waits would grow to half a minute, in which no change is seen; now and then a list is compared."""
    timeouts = Timeouts(watch=60.0, inactivity=0.15, first_retry=0.001, longest_retry=0.1)
    async with FakeApiServer().serve() as server, open_client(server.url) as api:
        failed: list[Failed] = []
        async with aclosing(follow(api, Scope(PODS, None, LABEL), timeouts)) as changes:
            async for change in changes:
                failed += [change] if isinstance(change, Failed) else []
                if len(failed) == 9:
                    break
        lists = [seen for seen in server.seen if seen.verb == "list"]
    assert max(failure.wait for failure in failed) <= timeouts.first_retry
    assert len(lists) == 3


async def test_a_deletion_without_an_event_is_found_by_the_next_list() -> None:
    async with open_informer(with_pods(2), replace(QUICK, watch=1.0, resync=0.0)) as watched:
        await watched.ready()
        watched.server.losing = True
        watched.server.remove("Pod", "pod-0")
        watched.server.end_watches()
        await until(watched.is_level)
        assert len(watched.requests("list")) > 1


async def test_a_bookmark_saves_a_list() -> None:
    def put_others(server: FakeApiServer) -> None:
        for number in range(10):
            server.put(build_pod(f"other-{number}", job=None))

    async with open_informer(with_pods(1)) as watched:
        await watched.ready()
        put_others(watched.server)
        watched.server.send_bookmarks()
        watched.server.put(build_pod("marker"))
        await until(watched.is_level)
        put_others(watched.server)
        watched.server.send_bookmarks()
        watched.server.end_watches()
        await until(lambda: len(watched.requests("watch")) == 2)
        assert watched.requests("watch")[-1].query["resourceVersion"] == str(watched.server.version)
        assert len(watched.requests("list")) == 1


@pytest.mark.parametrize("verb", ["list", "watch"])
@pytest.mark.parametrize(
    "answer",
    [
        lambda: failing(429, "TooManyRequests", retry_after="0"),
        lambda: failing(500, "InternalError"),
        lambda: failing(403, "Forbidden"),
        lambda: failing(410, "Expired"),
        lambda: failing(401, "Unauthorized"),
        lambda: web.Response(status=502, text="<html>"),
        lambda: web.Response(text="garbage"),
        lambda: web.json_response({"items": [{"metadata": {"name": "no uid"}}]}),
        lambda: web.Response(text=""),
        ConnectionResetError,
    ],
)
async def test_it_tries_again_until_it_is_answered(verb: str, answer: Callable[[], Any]) -> None:
    failures = 6

    def prepare(server: FakeApiServer) -> None:
        with_pods(2)(server)
        failed: list[Seen] = []

        def fault(seen: Seen) -> Any:
            if seen.verb == verb and len(failed) < failures:
                failed.append(seen)
                return answer()
            return None

        server.fault = fault

    async with open_informer(prepare) as watched:
        await watched.ready()
        # A list that expires is asked for twice, and aiohttp itself repeats one whose connection broke.
        assert failures / 2 <= len(watched.restarts) <= failures


async def test_it_is_active_while_the_api_server_is_away() -> None:
    async with open_informer(lambda server: setattr(server, "fault", lambda _s: failing(503, ""))) as watched:
        await until(lambda: len(watched.restarts) == 2)
        before = watched.informer.active_at
        await until(lambda: watched.informer.active_at != before)
        assert not watched.informer.synced.is_set()
