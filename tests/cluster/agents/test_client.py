"""What becomes of a request, with any server at the other end."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from trainjob.cluster.agents.wire import AgentRefused, AgentUnreachable, sync
from trainjob_trainer.contract.wire import GREETING, Opener, Sealer, read_length, session_key

TOKEN = "0123abcd"  # noqa: S105 - no password
TARGET = {"world": {"worker": 2}, "incarnations": {"worker-0": 1, "worker-1": 1}}
REPORT: dict[str, Any] = {"type": "report", "role": "leader", "phase": "running", "attempt": 1}

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[int]:
    """Give the port of a server that treats every connection with `serve`, and then closes it."""

    async def treat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(treat, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def agent(answer: dict[str, Any], seen: list[dict[str, Any]], *, token: str = TOKEN) -> Serve:
    """Return a server that keeps the protocol, and answers every target alike."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonce = os.urandom(32)
        writer.write(GREETING + nonce)
        key = session_key(token, nonce, await reader.readexactly(32))
        length = read_length(await reader.readexactly(4), 1 << 16)
        seen.append(Opener(key, b"C").open(await reader.readexactly(length)))
        writer.write(Sealer(key, b"S").seal(answer))
        await writer.drain()

    return serve


def saying(text: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        await writer.drain()
        writer.write_eof()
        await reader.read()

    return serve


async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def test_the_order_arrives_and_the_report_comes_back() -> None:
    seen: list[dict[str, Any]] = []
    async with serving(agent(REPORT, seen)) as port:
        assert await sync("127.0.0.1", port, TOKEN, TARGET) == REPORT
    assert seen == [{"type": "sync", "order": TARGET}]


async def test_space_around_the_token_does_not_count() -> None:
    async with serving(agent(REPORT, [], token=f"{TOKEN}\n")) as port:
        assert await sync("127.0.0.1", port, TOKEN, TARGET) == REPORT


async def test_a_large_report_is_read() -> None:
    report = {
        **REPORT,
        "members": {f"worker-{i}": {"state": "running", "pod": "x" * 60} for i in range(8000)},
    }
    assert len(json.dumps(report)) > 1 << 19
    async with serving(agent(report, [])) as port:
        assert await sync("127.0.0.1", port, TOKEN, TARGET) == report


async def test_an_order_that_no_agent_would_take_is_not_sent() -> None:
    target = {"incarnations": {f"worker-{i}": 1 for i in range(20_000)}}
    async with serving(agent(REPORT, [])) as port:
        with pytest.raises(AgentRefused, match="is too large"):
            await sync("127.0.0.1", port, TOKEN, target)


async def test_a_server_that_is_not_there() -> None:
    async with serving(silent) as port:
        pass
    with pytest.raises(AgentUnreachable, match=rf"agent at 127.0.0.1:{port} can't be reached"):
        await sync("127.0.0.1", port, TOKEN, TARGET)


async def test_no_such_host() -> None:
    with pytest.raises(AgentUnreachable, match=r"no-such-host\.invalid:1 can't be reached"):
        await sync("no-such-host.invalid", 1, TOKEN, TARGET)


@pytest.mark.parametrize("said", [b"", GREETING[:5], GREETING, GREETING + b"x" * 10])
async def test_a_server_that_leaves_before_it_is_identified(said: bytes) -> None:
    async with serving(saying(said)) as port:
        with pytest.raises(AgentUnreachable, match="closed the connection"):
            await sync("127.0.0.1", port, TOKEN, TARGET)


@pytest.mark.parametrize(
    "said", [b"", GREETING, GREETING + b"n" * 32, GREETING + b"n" * 32 + b"\0\0\1\0half"]
)
async def test_a_server_that_falls_silent(said: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await reader.read()

    async with serving(serve) as port:
        with pytest.raises(AgentUnreachable, match=r"not responded within 0\.05 s"):
            await sync("127.0.0.1", port, TOKEN, TARGET, timeout=0.05)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"SSH-2.0",
        b"TRAINJOB-AGENT/2" + b"n" * 32,
        GREETING + b"n" * 32,
        GREETING + b"n" * 32 + b"\0\0",
        GREETING + b"n" * 32 + b"\xff\xff\xff\xff",
        GREETING + b"n" * 32 + b"\0\0\0\0",
        GREETING + b"n" * 32 + b"\0\0\0\x40" + b"z" * 0x40,
    ],
)
async def test_a_server_that_is_no_agent_of_this_job(said: bytes) -> None:
    async with serving(saying(said)) as port:
        with pytest.raises(AgentRefused, match=rf"127.0.0.1:{port} isn't an agent of this job"):
            await sync("127.0.0.1", port, TOKEN, TARGET)


async def test_another_jobs_agent() -> None:
    seen: list[dict[str, Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with pytest.raises(ValueError, match="wrong tag"):
            await agent(REPORT, seen, token="another")(reader, writer)  # noqa: S106

    async with serving(serve) as port:
        with pytest.raises(AgentRefused, match="another token"):
            await sync("127.0.0.1", port, TOKEN, TARGET)
    assert not seen


@pytest.mark.parametrize("answer", [{}, {"type": "beat"}, {"type": ["report"]}])
async def test_an_answer_that_is_no_report(answer: dict[str, Any]) -> None:
    async with serving(agent(answer, [])) as port:
        with pytest.raises(AgentRefused, match="not with a report"):
            await sync("127.0.0.1", port, TOKEN, TARGET)


async def test_a_question_can_be_given_up() -> None:
    arrived = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await reader.read()

    async with serving(serve) as port:
        request = asyncio.ensure_future(sync("127.0.0.1", port, TOKEN, TARGET))
        await arrived.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
