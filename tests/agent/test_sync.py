"""The controller's request and an agent's connection, over a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from trainjob.cluster.agents.wire import AgentRefused, AgentUnreachable, sync
from trainjob_trainer.agent.wire import WireError, greet

TOKEN = "0123abcd"  # noqa: S105 - no password
REPORT: dict[str, Any] = {"type": "report", "role": "leader", "phase": "running", "members": {}}


@asynccontextmanager
async def agent(report: Mapping[str, Any], heard: list[Any], token: str = TOKEN) -> AsyncIterator[int]:
    """Give the port of a server that speaks as agents do, and answers everything with `report`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            channel = await greet(reader, writer, token)
            heard.append(await channel.receive(5))
            channel.post(report)
            await channel.close()
        except WireError as error:
            heard.append(str(error))
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_a_target_and_its_report() -> None:
    target = {"world": {"worker": 2}, "incarnations": {"worker-0": 3}, "text": "Grüße \u2028 \U0001f600"}
    report = {**REPORT, "failure": {"message": "Grüße \u2028 \U0001f600"}}
    heard: list[Any] = []
    async with agent(report, heard) as port:
        assert await sync("127.0.0.1", port, f"{TOKEN}\n", target) == report
    assert heard == [{"type": "sync", "order": target}]


async def test_the_largest_job() -> None:
    replicas = [f"worker-{index}" for index in range(2000)]
    target = {"world": {"worker": 2000}, "incarnations": dict.fromkeys(replicas, 12)}
    member = {"pod": "x" * 40, "incarnation": 12, "state": "running", "seconds": 1.5, "report": {"step": 9}}
    report = {**REPORT, "members": dict.fromkeys(replicas, member)}
    async with agent(report, []) as port:
        assert await sync("127.0.0.1", port, TOKEN, target) == report


async def test_another_token() -> None:
    heard: list[Any] = []
    async with agent(REPORT, heard, "another") as port:
        with pytest.raises(AgentRefused, match="another token"):
            await sync("127.0.0.1", port, TOKEN, {})
    assert heard == ["a frame has a wrong tag: another token, or the frame was altered"]


async def test_an_agent_that_leaves() -> None:
    async with agent(REPORT, []) as port:
        pass
    with pytest.raises(AgentUnreachable):
        await sync("127.0.0.1", port, TOKEN, {})
