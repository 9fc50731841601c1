"""Frames between agents, and between the controller and an agent: authentication and limits of size.

The server sends `TRAINJOB-AGENT/1` and 32 random bytes, the client 32 random bytes, and neither waits for
the other. Both derive a key from them and the job's token. After that a frame is a length, a tag and a JSON
object. The tag is an HMAC over the direction, the frame's number and the content: a frame needs the token,
and can't be repeated, reordered or reflected. The content is not secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import ipaddress
import json
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from trainjob_trainer.agent.log import Seldom
from trainjob_trainer.agent.settings import Address
from trainjob_trainer.errors import PortInUse

GREETING = b"TRAINJOB-AGENT/1"
NONCE_BYTES = 32
LENGTH_BYTES = 4
TAG_BYTES = 32

LARGEST_FRAME = 1 << 20
"""Bytes of tag and content."""

REPORT_BYTES = 1 << 16
REPLICA_BYTES = 128
MEMBER_BYTES = 1 << 11
"""The controller's limit of a report: a base, and an addition for each replica and for each pod."""

LARGEST_FIRST_FRAME = 1 << 16
"""The same, from a peer that is not authenticated yet."""

FRAME_SECONDS = 5.0
"""The longest time from the first to the last byte of a frame."""

_SECONDS_AT_ONCE = 1.0

_LARGEST_BACKLOG = 4 << 20
_PURPOSE = b"trainjob-agent/1"


def largest_report(replicas: int, pods: int) -> int:
    """Return the controller's limit, in bytes, of a report with so many replicas and pods."""
    return min(REPORT_BYTES + REPLICA_BYTES * replicas + MEMBER_BYTES * pods, LARGEST_FRAME)


class WireError(Exception):
    """The peer violates the protocol, does not have the token, or no longer reads."""


class Channel:
    """One connection; its first received frame authenticates the peer."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, *, is_server: bool
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._key = key
        self._directions = (b"S", b"C") if is_server else (b"C", b"S")
        self._sent = 0
        self._received = 0
        self._largest = LARGEST_FIRST_FRAME if is_server else LARGEST_FRAME

    @property
    def own_host(self) -> str:
        """Return the address at which the peer sees this side."""
        name = self._writer.get_extra_info("sockname")
        return str(name[0]) if name else ""

    async def receive(self, patience: float) -> dict[str, Any]:
        """Return the next message, which must begin within `patience` seconds.

        Raises WireError if its tag is wrong, it is too large, or it does not arrive.
        """
        length = int.from_bytes(await self._read(LENGTH_BYTES, patience), "big")
        if not TAG_BYTES < length <= self._largest:
            raise WireError(f"a frame of {length} bytes")
        return self._open(await self._read(length, FRAME_SECONDS))

    def post(self, message: Mapping[str, Any]) -> None:
        """Send without waiting; WireError if the message or the backlog of unread bytes is too large."""
        frame = self._seal(message)
        transport = self._writer.transport
        if transport.get_write_buffer_size() > _LARGEST_BACKLOG:
            raise WireError("the peer takes nothing")
        if not transport.is_closing():
            self._writer.write(frame)

    async def close(self, patience: float = 1.0) -> None:
        """Close the connection once all is sent, or after `patience` seconds."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            self._writer.close()
            await asyncio.wait_for(self._writer.wait_closed(), patience)
        self._writer.transport.abort()

    async def _read(self, count: int, patience: float) -> bytes:
        # `asyncio.wait_for` costs a task each time, and before Python 3.12 it may swallow a cancellation.
        silence = _Silence(patience, self._writer.transport.abort)
        try:
            return await _read_exactly(self._reader, count)
        except WireError:
            if silence.is_over:
                raise WireError("nothing was heard for too long") from None
            raise
        finally:
            silence.timer.cancel()

    def _seal(self, message: Mapping[str, Any]) -> bytes:
        payload = encode(message)
        length = TAG_BYTES + len(payload)
        if length > LARGEST_FRAME:
            raise WireError(f"a message of {length} bytes is too large to be sent")
        tag = _tag(self._key, self._directions[0], self._sent, payload)
        self._sent += 1
        return length.to_bytes(LENGTH_BYTES, "big") + tag + payload

    def _open(self, body: bytes) -> dict[str, Any]:
        tag, payload = body[:TAG_BYTES], body[TAG_BYTES:]
        if not hmac.compare_digest(tag, _tag(self._key, self._directions[1], self._received, payload)):
            raise WireError("a frame has a wrong tag: another token, or the frame was altered")
        self._received += 1
        self._largest = LARGEST_FRAME
        try:
            message = json.loads(payload.decode())
        except (ValueError, RecursionError) as error:
            raise WireError("a frame is no JSON") from error
        if not isinstance(message, dict):
            raise WireError("a frame is no JSON object")
        return message


class _Silence:
    """Closes the connection after a silence, in which a pause of this machine counts as one second at most.

    A peer that was paused with this machine could not send anything.
    """

    def __init__(self, patience: float, hang_up: Callable[[], None]) -> None:
        self._left = patience
        self._hang_up = hang_up
        self.is_over = False
        self._wait()

    def _wait(self) -> None:
        seconds = min(self._left, _SECONDS_AT_ONCE)
        self._left -= seconds
        self.timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        if self._left > 0:
            self._wait()
            return
        self.is_over = True
        self._hang_up()


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes) -> Channel:
    """Accept a peer's connection, whose first frame proves the token; WireError if it has ended."""
    nonce = os.urandom(NONCE_BYTES)
    writer.write(GREETING + nonce)
    theirs = await _read_exactly(reader, NONCE_BYTES)
    return Channel(reader, writer, _session_key(token, nonce, theirs), is_server=True)


async def connect(host: str, port: int, token: bytes, patience: float) -> Channel:
    """Connect to an agent within `patience` seconds or raise WireError; its first frame proves the token."""
    try:
        return await asyncio.wait_for(_connect(host, port, token), patience)
    except asyncio.TimeoutError as error:
        raise WireError(f"no answer within {patience:g} s") from error
    except OSError as error:
        raise WireError(str(error.strerror or error)) from error


async def _connect(host: str, port: int, token: bytes) -> Channel:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        nonce = os.urandom(NONCE_BYTES)
        writer.write(nonce)  # first: a service mesh may hold back a server that speaks before its client
        if await _read_exactly(reader, len(GREETING)) != GREETING:
            raise WireError("the server there is no agent")
        theirs = await _read_exactly(reader, NONCE_BYTES)
    except BaseException:
        writer.transport.abort()
        raise
    return Channel(reader, writer, _session_key(token, theirs, nonce), is_server=False)


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as JSON, which has no NaN, or raise WireError."""
    try:
        return json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise WireError(f"a message can't be written: {error}") from error


async def _read_exactly(reader: asyncio.StreamReader, count: int) -> bytes:
    try:
        return await reader.readexactly(count)
    except asyncio.IncompleteReadError as error:
        raise WireError("the connection was closed") from error
    except OSError as error:
        raise WireError(str(error.strerror or error)) from error


def _session_key(token: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    return hmac.new(token, _PURPOSE + server_nonce + client_nonce, hashlib.sha256).digest()


def _tag(key: bytes, direction: bytes, number: int, payload: bytes) -> bytes:
    return hmac.new(key, direction + number.to_bytes(8, "big") + payload, hashlib.sha256).digest()


# The agent's port: a peer without the job's token gets only a greeting, and is soon disconnected.


MOST_HANDSHAKES = 64
HANDSHAKE_SECONDS = 5.0

_BIND_SECONDS = 10.0
_LOG_SECONDS = 10.0


class Listener:
    """Authenticates peers; `serve` gets their connection and their first message."""

    def __init__(self, token: bytes, serve: Callable[[Channel, dict[str, Any]], Awaitable[None]]) -> None:
        self._token = token
        self._serve_peer = serve
        self._handshakes: dict[asyncio.StreamWriter, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._trouble = Seldom(_LOG_SECONDS)
        self._server: asyncio.AbstractServer | None = None

    async def open(self, address: Address) -> None:
        """Listen, on that address alone if it is an IP, else on all addresses; PortInUse after 10 s."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _BIND_SECONDS
        while True:
            try:
                listening = _listen(address)
                break
            except OSError as error:
                if loop.time() >= until:
                    raise PortInUse(f"can't listen on port {address.port}: {error.strerror}") from error
            await asyncio.sleep(0.1)
        self._server = await asyncio.start_server(self._accept, sock=listening, backlog=512)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._handshakes) >= MOST_HANDSHAKES:
            oldest = next(iter(self._handshakes))  # a peer with the token is authenticated at once
            del self._handshakes[oldest]
            oldest.transport.abort()
        self._handshakes[writer] = None
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            accepted = await self._handshake(reader, writer)
            if accepted is not None:
                try:
                    await self._serve_peer(*accepted)
                finally:
                    await accepted[0].close()
        except (WireError, OSError) as error:
            self._trouble.log(f"a connection from {_peer(writer)} has failed: {error}")
        finally:
            writer.transport.abort()

    async def _handshake(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Channel, dict[str, Any]] | None:
        try:
            return await asyncio.wait_for(self._authenticate(reader, writer), HANDSHAKE_SECONDS)
        except (WireError, OSError, asyncio.TimeoutError) as error:
            why = str(error) or "it says nothing"
            self._trouble.log(f"refused a connection from {_peer(writer)}: {why}")
            return None
        finally:
            self._handshakes.pop(writer, None)

    async def _authenticate(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Channel, dict[str, Any]]:
        channel = await greet(reader, writer, self._token)
        return channel, await channel.receive(HANDSHAKE_SECONDS)


def _listen(address: Address) -> socket.socket:
    try:
        version = ipaddress.ip_address(address.host).version
    except ValueError:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        return socket.create_server(("", address.port), family=family, backlog=512, dualstack_ipv6=dual)
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    return socket.create_server((address.host, address.port), family=family, backlog=512)


def _peer(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    return str(name[0]) if name else "somebody"
