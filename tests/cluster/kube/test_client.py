from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from support.kube.api_server import FakeApiServer, failing
from support.kube.kube_cluster import open_client, running, until
from trainjob.cluster import AlreadyExists, Conflict, NotFound, Refused, Unavailable
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import Access, read_token_file
from trainjob.cluster.kube.resources import PODS, TRAINJOBS
from trainjob.cluster.kube.responses import Expired
from trainjob.cluster.kube.transport import Call


def build_pod(name: str = "a", **labels: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "default", "labels": {"trainjob.dev/job": "digits", **labels}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {}}


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer().serve() as served:
        yield served


async def test_every_verb_does_what_it_says(server: FakeApiServer) -> None:
    async with open_client(server.url) as api:
        created = await api.create(PODS, build_pod())
        assert (await api.get(PODS, "default", "a"))["metadata"]["uid"] == created["metadata"]["uid"]
        patch = {"metadata": {"uid": created["metadata"]["uid"], "labels": {"x": "y"}}}
        patched = await api.patch(PODS, "default", "a", patch)
        assert patched["metadata"]["labels"] == {"trainjob.dev/job": "digits", "x": "y"}
        replaced = await api.replace(PODS, {**patched, "status": {"phase": "Running"}}, subresource="status")
        assert replaced["status"] == {"phase": "Running"}
        ending = await api.delete(PODS, "default", "a", uid=created["metadata"]["uid"])
        assert "deletionTimestamp" in ending["metadata"]
        await api.delete(PODS, "default", "a", uid=created["metadata"]["uid"], grace_seconds=0)
        assert (await api.list(PODS, None))["items"] == []
    verbs = [
        "create Pod a",
        "get Pod a",
        "patch Pod a",
        "update Pod/status a",
        "delete Pod a",
        "delete Pod a",
    ]
    assert [f"{seen.verb} {seen.kind} {seen.name}" for seen in server.seen[:-1]] == verbs


async def test_preconditions_are_kept(server: FakeApiServer) -> None:
    async with open_client(server.url) as api:
        with pytest.raises(NotFound):
            await api.get(PODS, "default", "a")
        created = await api.create(PODS, build_pod())
        with pytest.raises(AlreadyExists):
            await api.create(PODS, build_pod())
        with pytest.raises(Conflict):
            await api.delete(PODS, "default", "a", uid="another")
        with pytest.raises(Conflict):
            await api.patch(PODS, "default", "a", {"metadata": {"uid": "another"}})
        server.put(build_pod(x="y"))
        with pytest.raises(Conflict):
            await api.replace(PODS, {**created, "status": {}}, subresource="status")


async def test_lists_come_in_pages_or_as_metadata(server: FakeApiServer) -> None:
    for number in range(5):
        server.put(build_pod(f"pod-{number}"))
    async with open_client(server.url) as api:
        first = await api.list(PODS, "default", selector="trainjob.dev/job", limit=3)
        assert len(first["items"]) == 3
        rest = await api.list(PODS, "default", limit=3, continuation=first["metadata"]["continue"])
        assert len(rest["items"]) == 2
        assert "continue" not in rest["metadata"]
        assert (await api.list(PODS, "elsewhere"))["items"] == []
        whole = await api.list(PODS, None, metadata_only=True)
        assert all(set(item) == {"kind", "metadata"} for item in whole["items"])
        with pytest.raises(Expired):
            await api.list(PODS, "default", continuation="long ago")


async def test_every_request_is_reported(server: FakeApiServer) -> None:
    calls: list[Call] = []
    async with open_client(server.url, on_call=calls.append) as api:
        await api.list(PODS, None)
        with pytest.raises(NotFound):
            await api.replace(
                TRAINJOBS, {"metadata": {"namespace": "default", "name": "x"}}, subresource="status"
            )
        server.fault = lambda _seen: ConnectionResetError()
        with pytest.raises(Unavailable):
            await api.create(PODS, build_pod())
        server.fault = lambda _seen: None
        async with aclosing(api.watch(PODS, None, version="0", seconds=1)) as events:
            assert [event async for event in events] == []
    assert [(c.verb, c.group, c.resource, c.code) for c in calls] == [
        ("list", "", "pods", 200),
        ("update", "trainjob.dev", "trainjobs/status", 404),
        ("create", "", "pods", 0),
        ("watch", "", "pods", 200),
    ]
    assert all(call.seconds >= 0 for call in calls)


async def test_a_cancelled_request_does_not_count_as_a_silent_server() -> None:
    calls: list[Call] = []
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        async with open_client(f"http://127.0.0.1:{port}", on_call=calls.append) as api:
            request = asyncio.ensure_future(api.list(PODS, None))
            await asked.wait()
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
    assert calls == []


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (403, "Forbidden", Refused),
        (422, "Invalid", Refused),
        (409, "Conflict", Conflict),
        (500, "InternalError", Unavailable),
        (401, "Unauthorized", Unavailable),
    ],
)
async def test_an_answer_becomes_its_error(
    server: FakeApiServer, code: int, reason: str, kind: type[Exception]
) -> None:
    server.fault = lambda _seen: failing(code, reason)
    async with open_client(server.url) as api:
        with pytest.raises(kind, match="injected"):
            await api.create(PODS, build_pod())
        with pytest.raises(kind, match="injected"):
            async with aclosing(api.watch(PODS, None, version="0", seconds=1)) as events:
                await anext(events)


async def test_it_says_how_long_to_wait(server: FakeApiServer) -> None:
    server.fault = lambda _seen: failing(429, "TooManyRequests", retry_after="7")
    async with open_client(server.url) as api:
        with pytest.raises(Unavailable) as raised:
            await api.get(PODS, "default", "a")
    assert raised.value.retry_after == 7


@pytest.mark.parametrize("body", ["not json", "[]", "{", "", "[" * 100_000], ids=lambda body: body[:8])
async def test_an_answer_that_can_not_be_read_is_none(server: FakeApiServer, body: str) -> None:
    server.fault = lambda _seen: web.Response(text=body)
    async with open_client(server.url) as api:
        with pytest.raises(Unavailable):
            await api.get(PODS, "default", "a")


async def test_a_redirect_is_not_followed(server: FakeApiServer) -> None:
    server.fault = lambda _seen: web.Response(status=302, headers={"Location": "http://elsewhere.invalid/"})
    async with open_client(server.url) as api:
        with pytest.raises(Unavailable):
            await api.get(PODS, "default", "a")
    assert len(server.seen) == 1


async def test_a_server_that_is_not_there() -> None:
    server = FakeApiServer()
    async with server.serve():
        url = server.url
    async with open_client(url) as api:
        with pytest.raises(Unavailable, match="no answer"):
            await api.get(PODS, "default", "a")


async def test_a_server_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with open_client(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.05) as api:
            with pytest.raises(Unavailable, match="no answer"):
                await api.get(PODS, "default", "a")


async def test_a_rotated_token_is_read_again(server: FakeApiServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    server.tokens = {"one"}
    async with open_client(server.url, access={"read_token": partial(read_token_file, file)}) as api:
        await api.list(PODS, None)
        server.tokens = {"two"}
        with pytest.raises(Unavailable):
            await api.list(PODS, None)
        assert [seen.token for seen in server.seen] == ["one", "one"]
        file.write_text("two")
        await api.list(PODS, None)
        await api.list(PODS, None)
    assert [seen.token for seen in server.seen[2:]] == ["one", "two", "two"]


async def test_a_rotation_is_noticed_by_every_request_under_way(
    server: FakeApiServer, tmp_path: Path
) -> None:
    """The first one to be turned down reads the new token; for the others it is new, too."""
    file = tmp_path / "token"
    file.write_text("one")
    server.tokens = {"one"}
    async with open_client(server.url, access={"read_token": partial(read_token_file, file)}) as api:
        await api.list(PODS, None)
        server.tokens = {"two"}
        file.write_text("two")
        await asyncio.gather(*(api.list(PODS, None) for _ in range(5)))


async def test_a_token_may_be_given_as_it_is(server: FakeApiServer) -> None:
    server.tokens = {"fixed"}
    async with open_client(server.url, access={"read_token": lambda _: "Bearer fixed"}) as api:
        await api.list(PODS, None)


async def test_it_must_be_opened(server: FakeApiServer) -> None:
    with pytest.raises(RuntimeError):
        await ApiClient(Access(server=server.url)).get(PODS, "default", "a")


async def test_connections_are_kept(server: FakeApiServer) -> None:
    async with open_client(server.url) as api:
        for name in "abcde":
            await api.create(PODS, build_pod(name))
    assert len({seen.peer for seen in server.seen}) == 1


class Watched:
    """What a watch has given so far."""

    def __init__(self, api: ApiClient, **options: Any) -> None:
        self.events: list[tuple[str, str]] = []
        self.error: Exception | None = None
        self.ended = False
        self._events = api.watch(PODS, None, **{"version": "0", "seconds": 30, **options})

    async def run(self) -> None:
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    self.events.append((event.type, event.object["metadata"].get("name", "")))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error
        self.ended = True


async def test_a_watch_gives_what_happens_to_whom_it_selects(server: FakeApiServer) -> None:
    async with open_client(server.url) as api:
        watched = Watched(api, selector="trainjob.dev/job")
        async with running(watched.run()):
            server.put(build_pod())
            server.put(build_pod(x="y"))
            server.put({**build_pod("b"), "metadata": {"name": "b"}})
            server.remove("Pod", "a")
            await until(lambda: server.open_watches()["Pod"])
            server.send_bookmarks()
            await until(lambda: len(watched.events) == 4)
            server.end_watches()
            await until(lambda: watched.ended)
    assert watched.events == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("BOOKMARK", "")]
    assert watched.error is None


async def test_an_object_of_megabytes_comes_through(server: FakeApiServer) -> None:
    large = build_pod()
    large["metadata"]["annotations"] = {"x": "y" * 3_000_000}
    async with open_client(server.url) as api:
        watched = Watched(api)
        async with running(watched.run()):
            server.put(large)
            await until(lambda: watched.events)
    assert watched.events == [("ADDED", "a")]


async def test_a_version_of_long_ago_has_expired(server: FakeApiServer) -> None:
    server.put(build_pod())
    server.compact()
    async with open_client(server.url) as api:
        watched = Watched(api, version="1")
        await watched.run()
    assert isinstance(watched.error, Expired)


@pytest.mark.parametrize(
    "line",
    [b"{garbage\n", b"\xff\xfe\n", json.dumps({"type": "NEWS"}).encode() + b"\n", b"[" * 100_000 + b"\n"],
)
async def test_a_watch_that_can_not_be_read_has_expired(server: FakeApiServer, line: bytes) -> None:
    async with open_client(server.url) as api:
        watched = Watched(api)
        async with running(watched.run()):
            await until(lambda: server.open_watches()["Pod"])
            server.send_line("Pod", line)
            await until(lambda: watched.ended)
    assert isinstance(watched.error, Expired)


async def test_a_broken_connection_is_no_end(server: FakeApiServer) -> None:
    async with open_client(server.url) as api:
        watched = Watched(api)
        async with running(watched.run()):
            await until(lambda: server.open_watches()["Pod"])
            server.drop_watches()
            await until(lambda: watched.ended)
    assert isinstance(watched.error, Unavailable)


async def test_a_silent_watch_is_given_up(server: FakeApiServer) -> None:
    async with open_client(server.url) as api:
        watched = Watched(api, inactivity=0.05)
        await watched.run()
    assert isinstance(watched.error, Unavailable)
