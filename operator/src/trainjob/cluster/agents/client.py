"""One question to a job's agent, and its answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

from trainjob.cluster.agents.wire import (
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


class AgentError(Exception):
    """An agent could not be asked; the subclass says why."""


class AgentUnreachable(AgentError):
    """Nobody is there, or nobody answered in time: try again."""


class AgentRefused(AgentError):
    """Somebody is there who does not take what we say: another token, or another protocol."""


async def sync(
    host: str,
    port: int,
    token: str,
    order: Mapping[str, Any],
    *,
    timeout: float = 3.0,  # noqa: ASYNC109 - callers have no use for what is left of it
    largest: int = LARGEST_FRAME,
) -> Mapping[str, Any]:
    """Tell an agent what is wanted, and return its report (`docs/contract.md` has the keys of both).

    Args:
        host: address of the pod.
        port: of its agent.
        token: the job's.
        order: what the leading agent is to know.
        timeout: seconds for all of it.
        largest: bytes of a report; see `largest_report`.

    Raises:
        AgentUnreachable: nobody is there, or time is over.
        AgentRefused: whoever is there does not know the token or the protocol, says more than it may, or
            would not take as large an order.
    """
    where = f"{host}:{port}"
    try:
        async with asyncio.timeout(timeout), _connected(host, port) as (reader, writer):
            return await _ask(reader, writer, token, order, largest)
    except TimeoutError as error:
        raise AgentUnreachable(f"the agent at {where} has not answered within {timeout:g} s") from error
    except OSError as error:
        raise AgentUnreachable(f"the agent at {where} can't be reached: {error.strerror or error}") from error
    except _Closed as error:
        raise AgentUnreachable(f"the agent at {where} has closed the connection") from error
    except InvalidFrame as error:
        raise AgentRefused(f"whoever listens at {where} is no agent of this job: {error}") from error
    except FrameTooLarge as error:
        raise AgentRefused(f"the agent at {where} would not take the order: {error}") from error


class _Closed(Exception):
    """The connection ended before anything was said."""


@contextlib.asynccontextmanager
async def _connected(
    host: str, port: int
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        # Not `close`, which waits until all that was written has been taken: by somebody who reads nothing.
        writer.transport.abort()


async def _ask(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    token: str,
    order: Mapping[str, Any],
    largest: int,
) -> Mapping[str, Any]:
    server_nonce = await _greeted(reader)
    client_nonce = os.urandom(NONCE_BYTES)
    key = session_key(token, server_nonce, client_nonce)
    writer.write(client_nonce)
    writer.write(Sealer(key, b"C").seal({"type": "sync", "order": order}, LARGEST_FIRST_FRAME))
    await writer.drain()
    try:
        length = read_length(await reader.readexactly(LENGTH_BYTES), largest)
        report = Opener(key, b"S").open(await reader.readexactly(length))
    except asyncio.IncompleteReadError as error:
        raise InvalidFrame("it has closed the connection: another token, perhaps") from error
    if report.get("type") != "report":
        raise InvalidFrame(f"it answers with {str(report.get('type'))[:40]!r}, not with a report")
    return report


async def _greeted(reader: asyncio.StreamReader) -> bytes:
    """Return the agent's nonce."""
    said = b""
    try:
        said = await reader.readexactly(len(GREETING))
        nonce = await reader.readexactly(NONCE_BYTES) if said == GREETING else b""
    except asyncio.IncompleteReadError as error:
        if GREETING.startswith(said or error.partial):
            raise _Closed from error
        said = error.partial
    if said != GREETING:
        raise InvalidFrame(f"it says {said!r}")
    return nonce
