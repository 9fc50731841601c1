"""One request to a job's agent, as bytes, and its report."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
from collections.abc import AsyncIterator, Mapping
from typing import Any

# Frames between the controller and an agent, as bytes.
#
# A frame is a length, a tag and a JSON object. The tag is an HMAC over the direction, the frame's number in
# that direction and the content, with a key that only this connection has. So only a peer with the job's
# token can write a frame, and no frame can be repeated, reordered or sent back.


GREETING = b"TRAINJOB-AGENT/1"
"""The first bytes from an agent, before its nonce."""

NONCE_BYTES = 32
LENGTH_BYTES = 4
TAG_BYTES = 32

LARGEST_FRAME = 1 << 20
"""Bytes of tag and content of any frame."""

REPORT_BYTES = 1 << 16
"""Bytes of a report beside its replicas: a failure with its log, and the reports of writer and evaluator."""

REPLICA_BYTES = 128
"""Bytes of a report for each replica that the job should have: a missing replica takes that many."""

MEMBER_BYTES = 1 << 11
"""Bytes of a report for each pod: the progress report of its training process."""

LARGEST_FIRST_FRAME = 1 << 16
"""Bytes of tag and content of a frame from a peer that the agent has not authenticated yet."""

_PURPOSE = b"trainjob-agent/1"


class InvalidFrame(ValueError):
    """The peer is not an agent of this job, or violates the protocol."""


class FrameTooLarge(ValueError):
    """The message is larger than the peer accepts."""


def session_key(token: str, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """Return the key of one connection.

    Args:
        token: the job's, as in its file; surrounding whitespace is ignored.
        server_nonce: the agent's 32 random bytes.
        client_nonce: the controller's.
    """
    return _hmac(token.strip().encode(), _PURPOSE + server_nonce + client_nonce)


class Sealer:
    """Writes the frames of one direction.

    Args:
        key: of the connection.
        direction: `b"C"` from the client, `b"S"` from the server.
    """

    def __init__(self, key: bytes, direction: bytes) -> None:
        self._key = key
        self._direction = direction
        self._number = 0

    def seal(self, message: Mapping[str, Any], largest: int = LARGEST_FRAME) -> bytes:
        """Return the next frame.

        Raises:
            FrameTooLarge: it would be larger than `largest`.
        """
        payload = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
        length = TAG_BYTES + len(payload)
        if length > largest:
            raise FrameTooLarge(f"a message of {length} bytes: at most {largest} are accepted")
        tag = _tag(self._key, self._direction, self._number, payload)
        self._number += 1
        return length.to_bytes(LENGTH_BYTES, "big") + tag + payload


class Opener:
    """Reads the frames of one direction; the arguments are those of `Sealer`."""

    def __init__(self, key: bytes, direction: bytes) -> None:
        self._key = key
        self._direction = direction
        self._number = 0

    def open(self, body: bytes) -> dict[str, Any]:
        """Return the message of the next frame.

        Args:
            body: tag and content, without the length.

        Raises:
            InvalidFrame: the peer did not write it as its next frame, or it holds no JSON object.
        """
        tag, payload = body[:TAG_BYTES], body[TAG_BYTES:]
        if not hmac.compare_digest(tag, _tag(self._key, self._direction, self._number, payload)):
            raise InvalidFrame("a frame has a wrong tag: another token, or the frame was altered")
        self._number += 1
        return _read(payload)


def largest_report(replicas: int, pods: int) -> int:
    """Return the maximum size of a report in bytes.

    Args:
        replicas: number of replicas that the job should have.
        pods: number of pods that the job has: pods cost their owner something, missing replicas don't.
    """
    return min(REPORT_BYTES + REPLICA_BYTES * replicas + MEMBER_BYTES * pods, LARGEST_FRAME)


def read_length(prefix: bytes, largest: int = LARGEST_FRAME) -> int:
    """Return the number of bytes of tag and content that follow.

    Raises:
        InvalidFrame: no frame has that length.
    """
    length = int.from_bytes(prefix, "big")
    if not TAG_BYTES < length <= largest:
        raise InvalidFrame(f"a frame of {length} bytes: at most {largest} are accepted")
    return length


def _read(payload: bytes) -> dict[str, Any]:
    try:
        message = json.loads(payload.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidFrame(f"a frame is no JSON: {error}") from error
    if not isinstance(message, dict):
        raise InvalidFrame("a frame is no JSON object")
    return message


def _refuse_constant(name: str) -> float:
    # These values may reach a status, and Kubernetes has no NaN.
    raise ValueError(f"{name} is no JSON number")


def _tag(key: bytes, direction: bytes, number: int, payload: bytes) -> bytes:
    return _hmac(key, direction + number.to_bytes(8, "big") + payload)


def _hmac(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, hashlib.sha256).digest()


# One request to a job's agent, and its report.


class AgentError(Exception):
    """A request to an agent failed; the subclass gives the reason."""


class AgentUnreachable(AgentError):
    """No agent listens there, or none answered in time: try again."""


class AgentRefused(AgentError):
    """The peer rejects the request, or sends invalid frames: another token, or another protocol."""


async def sync(
    host: str,
    port: int,
    token: str,
    target: Mapping[str, Any],
    *,
    timeout: float = 3.0,  # noqa: ASYNC109 - callers have no use for what is left of it
    largest: int = LARGEST_FRAME,
) -> Mapping[str, Any]:
    """Send an agent target, and return the agent's report (`docs/contract.md` has the keys of both).

    Args:
        host: address of the pod.
        port: of its agent.
        token: the job's.
        target: the agent target.
        timeout: seconds for the whole request.
        largest: maximum bytes of the report; see `largest_report`.

    Raises:
        AgentUnreachable: no agent listens there, or none answered in time.
        AgentRefused: the peer has another token or protocol, its report is larger than `largest`, or the
            agent target is larger than an agent accepts.
    """
    where = f"{host}:{port}"
    try:
        async with asyncio.timeout(timeout), _connected(host, port) as (reader, writer):
            return await _ask(reader, writer, token, target, largest)
    except TimeoutError as error:
        raise AgentUnreachable(f"the agent at {where} has not answered within {timeout:g} s") from error
    except OSError as error:
        raise AgentUnreachable(f"the agent at {where} can't be reached: {error.strerror or error}") from error
    except _Closed as error:
        raise AgentUnreachable(f"the agent at {where} has closed the connection") from error
    except InvalidFrame as error:
        raise AgentRefused(f"the server at {where} is no agent of this job: {error}") from error
    except FrameTooLarge as error:
        raise AgentRefused(f"the agent at {where} would not take the order: {error}") from error


class _Closed(Exception):
    """The connection ended before the greeting and the nonce were complete."""


@contextlib.asynccontextmanager
async def _connected(
    host: str, port: int
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        yield reader, writer
    finally:
        # Not `close`: it waits until the peer has read everything, and the peer may read nothing.
        writer.transport.abort()


async def _ask(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    token: str,
    target: Mapping[str, Any],
    largest: int,
) -> Mapping[str, Any]:
    client_nonce = os.urandom(NONCE_BYTES)
    writer.write(client_nonce)  # first: a service mesh may hold back a server that speaks before its client
    server_nonce = await _greeted(reader)
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
