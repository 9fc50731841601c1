from __future__ import annotations

import asyncio
import base64
import logging
from typing import Any

import pytest

from support.kube.api_server import FakeApiServer, Seen, failing
from support.kube.kube_cluster import open_client, until
from trainjob.cluster.kube.informer import Backoff
from trainjob.controller.agent_key import InvalidKey, need_key


async def need(server: FakeApiServer) -> bytes:
    async with open_client(server.url) as api:
        return await need_key(api, "system", "key", Backoff(0.01, 0.02))


def stored(data: dict[str, str] | None) -> dict[str, Any]:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key", "namespace": "system"}}
    return secret if data is None else {**secret, "data": data}


async def test_it_is_made_once_and_the_same_from_then_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with FakeApiServer().serve() as server:
        key = await need(server)
        assert len(key) == 32
        assert await need(server) == key
        assert server.writes() == ["create Secret key"]
        secret = server.find("Secret", "key", "system")
        assert secret is not None
        assert secret["immutable"]
        assert base64.b64decode(secret["data"]["key"]) == key
    assert "Secret system/key" in caplog.text
    assert secret["data"]["key"] not in caplog.text
    assert key.hex() not in caplog.text


async def test_two_clusters_have_two_keys() -> None:
    async with FakeApiServer().serve() as one, FakeApiServer().serve() as other:
        assert await need(one) != await need(other)


async def test_replicas_that_start_at_once_agree() -> None:
    async with FakeApiServer().serve() as server:
        keys = await asyncio.gather(*(need(server) for _ in range(5)))
        assert len(set(keys)) == 1
        assert len(server.all("Secret")) == 1


async def test_the_loser_of_the_race_uses_the_winners() -> None:
    async with FakeApiServer().serve() as server:
        winners = base64.b64encode(b"w" * 32).decode()

        def overtake(seen: Seen) -> None:
            if seen.verb == "create":
                server.fault = lambda _seen: None
                server.put(stored({"key": winners}))

        server.fault = overtake
        assert await need(server) == b"w" * 32


async def test_it_waits_until_the_api_server_lets_it(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeApiServer().serve() as server:
        server.fault = lambda _seen: failing(403, "Forbidden", "secrets is forbidden")
        needing = asyncio.ensure_future(need(server))
        await until(lambda: len(server.seen) >= 3)
        assert not needing.done()
        assert "Secret system/key: Forbidden: secrets is forbidden; trying again" in caplog.text
        server.fault = lambda _seen: None
        assert len(await needing) == 32


@pytest.mark.parametrize(
    "data",
    [None, {}, {"other": "eA=="}, {"key": "eA=="}, {"key": "no base64!"}, {"key": ""}],
)
async def test_a_secret_without_a_key_is_left_alone_and_named(data: dict[str, str] | None) -> None:
    async with FakeApiServer().serve() as server:
        server.put(stored(data))
        with pytest.raises(InvalidKey, match="Secret system/key has no entry 'key' of at least 32 bytes"):
            await need(server)
        assert server.writes() == []
