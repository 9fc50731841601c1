"""The agents' port behind the proxies of service meshes, which hold back a server that speaks first."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from testbed.ports import free_ports

from trainjob.cluster.agents.wire import sync
from trainjob_trainer.agent.settings import Address
from trainjob_trainer.agent.wire import Channel, Listener, connect
from trainjob_trainer.contract.wire import GREETING, NONCE_BYTES, Opener, Sealer, read_length, session_key

TOKEN = "token"  # noqa: S105
PATIENCE = 20.0
REPORT: dict[str, Any] = {"type": "report", "role": "leader", "phase": "running"}

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Waits = Callable[[Reader], Awaitable[bytes]]


# Proxies. Each returns what it has read from the client before it passes anything on.


async def first_byte(reader: Reader) -> bytes:
    return await reader.read(1)


async def peek(reader: Reader) -> bytes:
    """As many bytes as HTTP/2 begins with, or a timeout."""
    seen = b""
    try:
        async with asyncio.timeout(PATIENCE):
            while len(seen) < 24:
                seen += await reader.readexactly(1)
    except (TimeoutError, asyncio.IncompleteReadError):
        pass
    return seen


async def half_duplex(reader: Reader) -> bytes:
    return await reader.read(1 << 16)


async def pump(reader: Reader, writer: Writer) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


@asynccontextmanager
async def proxied(waits: Waits, port: int) -> AsyncIterator[int]:
    """Give the port of a proxy before a server."""

    async def carry(reader: Reader, writer: Writer) -> None:
        opened = [writer]
        try:
            seen = b"" if waits is half_duplex else await waits(reader)
            theirs, ours = await asyncio.open_connection("127.0.0.1", port)
            opened.append(ours)
            ours.write(seen or await waits(reader))
            await asyncio.gather(pump(reader, ours), pump(theirs, writer))
        except OSError:
            pass  # one side has hung up
        finally:
            for each in opened:
                each.transport.abort()

    serving = await asyncio.start_server(carry, "127.0.0.1", 0)
    try:
        yield serving.sockets[0].getsockname()[1]
    finally:
        serving.close()
        await all_closed()


async def all_closed() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(0.05)  # transports close in the loop


# Servers.


@asynccontextmanager
async def agent() -> AsyncIterator[int]:
    async def report(channel: Channel, _first: dict[str, Any]) -> None:
        channel.post(REPORT)
        await channel.receive(PATIENCE)

    (port,) = free_ports(1)
    listener = Listener(TOKEN, report)
    await listener.open(Address("127.0.0.1", port))
    try:
        yield port
    finally:
        listener.close()
        await all_closed()


@asynccontextmanager
async def earlier_agent() -> AsyncIterator[int]:
    """The server's side of version 0.1: the greeting, and only then it reads."""

    async def serve(reader: Reader, writer: Writer) -> None:
        nonce = os.urandom(NONCE_BYTES)
        writer.write(GREETING + nonce)
        await writer.drain()
        try:
            key = session_key(TOKEN, nonce, await reader.readexactly(NONCE_BYTES))
            length = read_length(await reader.readexactly(4), 1 << 16)
            Opener(key, b"C").open(await reader.readexactly(length))
            writer.write(Sealer(key, b"S").seal(REPORT))
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    serving = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield serving.sockets[0].getsockname()[1]
    finally:
        serving.close()
        await all_closed()


# Clients: each returns the report.


async def controller(port: int) -> Any:
    return await sync("127.0.0.1", port, TOKEN, {"world": {"worker": 2}}, timeout=PATIENCE)


async def other_agent(port: int) -> Any:
    channel = await connect("127.0.0.1", port, TOKEN, PATIENCE)
    channel.post({"type": "join"})
    try:
        return await channel.receive(PATIENCE)
    finally:
        await channel.close()


async def earlier_client(port: int) -> Any:
    """The client's side of version 0.1: it sends nothing before it has read the greeting."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(0.3):
            assert await reader.readexactly(len(GREETING)) == GREETING
        theirs, ours = await reader.readexactly(NONCE_BYTES), os.urandom(NONCE_BYTES)
        key = session_key(TOKEN, theirs, ours)
        writer.write(ours + Sealer(key, b"C").seal({"type": "sync", "order": {}}))
        length = read_length(await reader.readexactly(4))
        return Opener(key, b"S").open(await reader.readexactly(length))
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("waits", [first_byte, peek, half_duplex])
@pytest.mark.parametrize("server", [agent, earlier_agent])
@pytest.mark.parametrize("client", [controller, other_agent])
async def test_agents_are_reached_through_a_proxy_that_waits_for_the_client(
    waits: Waits, server: Any, client: Callable[[int], Awaitable[Any]]
) -> None:
    async with server() as port, proxied(waits, port) as outside:
        assert await client(outside) == REPORT


@pytest.mark.parametrize("server", [agent, earlier_agent])
@pytest.mark.parametrize("client", [controller, other_agent, earlier_client])
async def test_old_and_new_agents_mix(server: Any, client: Callable[[int], Awaitable[Any]]) -> None:
    async with server() as port:
        assert await client(port) == REPORT


@pytest.mark.parametrize("waits", [first_byte, peek, half_duplex])
async def test_such_a_proxy_holds_back_a_server_that_speaks_first(waits: Waits) -> None:
    async with agent() as port, proxied(waits, port) as outside:
        with pytest.raises(TimeoutError):
            await earlier_client(outside)
