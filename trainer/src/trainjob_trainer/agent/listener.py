"""The agent's port: whoever does not know the job's token gets nothing but a greeting, and not for long."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from trainjob_trainer.agent.log import Seldom
from trainjob_trainer.agent.settings import Address
from trainjob_trainer.agent.wire import Channel, WireError, greet

MOST_STRANGERS = 64
STRANGER_SECONDS = 5.0

_BIND_SECONDS = 10.0
_LOG_SECONDS = 10.0


class PortTaken(Exception):
    """Somebody else listens on the agent's port."""


class Listener:
    """Lets in those who know the token; `meet` gets their connection and their first message."""

    def __init__(self, token: bytes, meet: Callable[[Channel, dict[str, Any]], Awaitable[None]]) -> None:
        self._token = token
        self._meet = meet
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._guests: set[asyncio.Task[None]] = set()
        self._trouble = Seldom(_LOG_SECONDS)
        self._server: asyncio.AbstractServer | None = None

    async def open(self, address: Address) -> None:
        """Listen, on that address alone if it is an IP, else on all of this machine; PortTaken after 10 s."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _BIND_SECONDS
        while True:
            try:
                listening = _listen(address)
                break
            except OSError as error:
                if loop.time() >= until:
                    raise PortTaken(f"can't listen on port {address.port}: {error.strerror}") from error
            await asyncio.sleep(0.1)
        self._server = await asyncio.start_server(self._accept, sock=listening, backlog=512)

    def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._strangers) >= MOST_STRANGERS:
            oldest = next(iter(self._strangers))  # those who know the token are through in no time
            del self._strangers[oldest]
            oldest.transport.abort()
        self._strangers[writer] = None
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._guests.add(task)
        task.add_done_callback(self._guests.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            guest = await self._let_in(reader, writer)
            if guest is not None:
                await self._attend(*guest, _peer(writer))
        finally:
            writer.transport.abort()

    async def _let_in(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Channel, dict[str, Any]] | None:
        try:
            return await asyncio.wait_for(self._get_to_know(reader, writer), STRANGER_SECONDS)
        except (WireError, OSError, asyncio.TimeoutError) as error:
            why = str(error) or "it says nothing"
            self._trouble.log(f"refused a connection from {_peer(writer)}: {why}")
            return None
        finally:
            self._strangers.pop(writer, None)

    async def _attend(self, channel: Channel, first: dict[str, Any], peer: str) -> None:
        try:
            await self._meet(channel, first)
        except (WireError, OSError) as error:
            self._trouble.log(f"a connection from {peer} has failed: {error}")
        finally:
            await channel.close()

    async def _get_to_know(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Channel, dict[str, Any]]:
        channel = await greet(reader, writer, self._token)
        return channel, await channel.receive(STRANGER_SECONDS)


def _listen(address: Address) -> socket.socket:
    if _is_ip(address.host):
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        return socket.create_server((address.host, address.port), family=family, backlog=512)
    if socket.has_dualstack_ipv6():
        return socket.create_server(
            ("", address.port), family=socket.AF_INET6, backlog=512, dualstack_ipv6=True
        )
    return socket.create_server(("", address.port), backlog=512)


def _is_ip(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return True
    return False


def _peer(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    return str(name[0]) if name else "somebody"
