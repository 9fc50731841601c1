"""What a server that spoils its answers and watches is made of: the fake one's, and the proxy's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from aiohttp import web

from support.kube.api_server.rules import Seen

Fault = Callable[[Seen], web.StreamResponse | Exception | None]
"""Given a request: an answer to give instead, an exception (the connection is dropped), or None."""


class OpenWatch(Protocol):
    transport: asyncio.BaseTransport | None
    frozen: bool


class FaultyServer:
    """A server on a port of 127.0.0.1, and what tests spoil of it.

    `fault` is asked before each request is worked on; `fault_after` when the work is done, and its answer is
    lost or another one. While `losing` is set, nothing that happens reaches a watch.
    """

    _streams: Sequence[OpenWatch]

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.seen: list[Seen] = []
        self.fault: Fault = lambda _seen: None
        self.fault_after: Fault = lambda _seen: None
        self.losing = False

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield
        finally:
            await runner.cleanup()

    def drop_watches(self) -> None:
        for stream in list(self._streams):
            if isinstance(stream.transport, asyncio.WriteTransport):
                stream.transport.abort()

    def freeze_watches(self) -> None:
        """Have every open watch, and no later one, say nothing more."""
        for stream in self._streams:
            stream.frozen = True

    def _give(self, request: web.Request, fault: web.StreamResponse | Exception) -> web.StreamResponse:
        if isinstance(fault, web.StreamResponse):
            return fault
        if request.transport is not None:
            request.transport.abort()
        return web.Response()  # which nobody gets
