"""Connections between agents, and from the controller: their frames, within limits of time."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from trainjob_trainer.agent.log import Seldom
from trainjob_trainer.agent.settings import Address
from trainjob_trainer.contract.wire import (
    GREETING,
    LARGEST_FIRST_FRAME,
    LARGEST_FRAME,
    LENGTH_BYTES,
    NONCE_BYTES,
    InvalidFrame,
    Opener,
    Sealer,
    read_length,
    session_key,
)
from trainjob_trainer.errors import PortInUse

FRAME_SECONDS = 5.0
"""The longest time from the first to the last byte of a frame."""

_SECONDS_AT_ONCE = 1.0

_LARGEST_BACKLOG = 4 << 20


class WireError(Exception):
    """The peer violates the protocol, does not have the token, or no longer reads."""


class Channel:
    """One connection; its first received frame authenticates the peer."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, *, is_server: bool
    ) -> None:
        self._reader = reader
        self._writer = writer
        ours, theirs = (b"S", b"C") if is_server else (b"C", b"S")
        self._sealer, self._opener = Sealer(key, ours), Opener(key, theirs)
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
        try:
            length = read_length(await self._read(LENGTH_BYTES, patience), self._largest)
            message = self._opener.open(await self._read(length, FRAME_SECONDS))
        except InvalidFrame as error:
            raise WireError(str(error)) from error
        self._largest = LARGEST_FRAME
        return message

    def post(self, message: Mapping[str, Any]) -> None:
        """Send without waiting; WireError if the message or the backlog of unread bytes is too large."""
        try:
            frame = self._sealer.seal(message)
        except (ValueError, TypeError, RecursionError) as error:
            raise WireError(f"a message can't be written: {error}") from error
        transport = self._writer.transport
        if transport.get_write_buffer_size() > _LARGEST_BACKLOG:
            raise WireError("the peer accepts no data")
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
                raise WireError("no message for too long") from None
            raise
        finally:
            silence.timer.cancel()


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


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> Channel:
    """Accept a peer's connection, whose first frame proves the token; WireError if it has ended."""
    nonce = os.urandom(NONCE_BYTES)
    writer.write(GREETING + nonce)
    theirs = await _read_exactly(reader, NONCE_BYTES)
    return Channel(reader, writer, session_key(token, nonce, theirs), is_server=True)


async def connect(host: str, port: int, token: str, patience: float) -> Channel:
    """Connect to an agent within `patience` seconds or raise WireError; its first frame proves the token."""
    try:
        return await asyncio.wait_for(_connect(host, port, token), patience)
    except asyncio.TimeoutError as error:
        raise WireError(f"no answer within {patience:g} s") from error
    except OSError as error:
        raise WireError(str(error.strerror or error)) from error


async def _connect(host: str, port: int, token: str) -> Channel:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        nonce = os.urandom(NONCE_BYTES)
        writer.write(nonce)  # first: a service mesh may hold back a server that speaks before its client
        if await _read_exactly(reader, len(GREETING)) != GREETING:
            raise WireError("the server there isn't an agent")
        theirs = await _read_exactly(reader, NONCE_BYTES)
    except BaseException:
        writer.transport.abort()
        raise
    return Channel(reader, writer, session_key(token, theirs, nonce), is_server=False)


async def _read_exactly(reader: asyncio.StreamReader, count: int) -> bytes:
    try:
        return await reader.readexactly(count)
    except asyncio.IncompleteReadError as error:
        raise WireError("the connection was closed") from error
    except OSError as error:
        raise WireError(str(error.strerror or error)) from error


# The agent's port: a peer without the job's token gets only a greeting, and is soon disconnected.


MOST_HANDSHAKES = 64
HANDSHAKE_SECONDS = 5.0

_BIND_SECONDS = 10.0
_LOG_SECONDS = 10.0


class Listener:
    """Authenticates peers; `serve` gets their connection and their first message."""

    def __init__(self, token: str, serve: Callable[[Channel, dict[str, Any]], Awaitable[None]]) -> None:
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
            why = str(error) or "it sends nothing"
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
