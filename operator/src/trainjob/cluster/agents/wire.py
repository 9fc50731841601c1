"""One request to a job's agent, and its report."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from trainjob_trainer.contract.wire import (
    GREETING,
    LARGEST_FIRST_FRAME,
    LARGEST_FRAME,
    LENGTH_BYTES,
    NONCE_BYTES,
    FrameTooLarge,
    InvalidFrame,
    Opener,
    Sealer,
    read_length,
    session_key,
)

Connect = Callable[[str, int], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


class AgentUnreachable(Exception):
    """No agent listens there, or none answered in time: try again."""


class AgentRefused(Exception):
    """The peer rejects the request, or sends invalid frames: another token, or another protocol."""


async def sync(
    host: str,
    port: int,
    token: str,
    target: Mapping[str, Any],
    *,
    timeout: float = 3.0,  # noqa: ASYNC109 - callers have no use for what is left of it
    largest: int = LARGEST_FRAME,
    connect: Connect = asyncio.open_connection,
) -> Mapping[str, Any]:
    """Send an agent target, and return the agent's report (`docs/contract.md` has the keys of both).

    Args:
        host: address of the pod.
        port: of its agent.
        token: the job's.
        target: the agent target.
        timeout: seconds for the whole request.
        largest: maximum bytes of the report; see `largest_report`.
        connect: opens the connection.

    Raises:
        AgentUnreachable: no agent listens there, or none answered in time.
        AgentRefused: the peer has another token or protocol, its report is larger than `largest`, or the
            agent target is larger than an agent accepts.
    """
    where = f"{host}:{port}"
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await connect(host, port)
            try:
                return await _call(reader, writer, token, target, largest)
            finally:
                # Not `close`: it waits until the peer has read everything, and the peer may read nothing.
                writer.transport.abort()
    except TimeoutError as error:
        raise AgentUnreachable(f"the agent at {where} has not responded within {timeout:g} s") from error
    except OSError as error:
        raise AgentUnreachable(f"the agent at {where} can't be reached: {error.strerror or error}") from error
    except _Closed as error:
        raise AgentUnreachable(f"the agent at {where} has closed the connection") from error
    except InvalidFrame as error:
        raise AgentRefused(f"the server at {where} isn't an agent of this job: {error}") from error
    except FrameTooLarge as error:
        raise AgentRefused(f"the message to the agent at {where} is too large: {error}") from error


class _Closed(Exception):
    """The connection ended before the greeting and the nonce were complete."""


async def _call(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    token: str,
    target: Mapping[str, Any],
    largest: int,
) -> Mapping[str, Any]:
    client_nonce = os.urandom(NONCE_BYTES)
    writer.write(client_nonce)  # first: a service mesh may hold back a server that speaks before its client
    greeting = b""
    try:
        greeting = await reader.readexactly(len(GREETING))
        server_nonce = await reader.readexactly(NONCE_BYTES) if greeting == GREETING else b""
    except asyncio.IncompleteReadError as error:
        if GREETING.startswith(greeting or error.partial):
            raise _Closed from error
        greeting = error.partial
    if greeting != GREETING:
        raise InvalidFrame(f"it says {greeting!r}")
    key = session_key(token, server_nonce, client_nonce)
    writer.write(Sealer(key, b"C").seal({"type": "sync", "order": target}, LARGEST_FIRST_FRAME))
    await writer.drain()
    try:
        length = read_length(await reader.readexactly(LENGTH_BYTES), largest)
        report = Opener(key, b"S").open(await reader.readexactly(length))
    except asyncio.IncompleteReadError as error:
        raise InvalidFrame("it has closed the connection: another token, perhaps") from error
    if report.get("type") != "report":
        raise InvalidFrame(f"it answers with {str(report.get('type'))[:40]!r}, not with a report")
    return report
