"""A reverse proxy in front of a real API server that spoils what it passes on, as a test says.

It takes plain HTTP, speaks TLS to the API server, and leaves tokens as they are.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from yarl import URL

from support.kube.api_server import FaultyServer, Seen, failing, read_path

_PASSED_ON = ("Authorization", "Accept", "Content-Type", "User-Agent")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass
class _Stream:
    kind: str
    client: web.StreamResponse
    transport: asyncio.BaseTransport | None
    frozen: bool = False


class FaultyProxy(FaultyServer):
    """Of the requests it sees those about a kind that is known."""

    def __init__(self, server: str, tls: ssl.SSLContext) -> None:
        super().__init__()
        self._server = server
        self._tls = tls
        self._streams: list[_Stream] = []
        self._expired: set[str] = set()
        self._last_versions: set[str] = set()
        self._upstream: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[FaultyProxy]:
        """Listen on a port of 127.0.0.1."""
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        # Watches are silent for long.
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(
                connector=connector, timeout=timeout, auto_decompress=False
            ) as self._upstream,
            self._listening(),
        ):
            yield self

    # -- what tests do -----------------------------------------------------------------------------------

    def compact(self) -> None:
        """Answer the next watch of each version that was asked for so far with 410."""
        self._expired |= self._last_versions

    def end_watches(self) -> None:
        """End every watch; here there is no difference between its time being over and a broken line."""
        self.drop_watches()

    def send_line(self, kind: str, line: bytes) -> None:
        """Put bytes into the open watches of a kind."""
        for stream in self._streams:
            if stream.kind == kind and isinstance(stream.transport, asyncio.WriteTransport):
                # As one chunk of the answer's body, between two others.
                stream.transport.write(b"%x\r\n%b\r\n" % (len(line), line))

    def open_watches(self) -> int:
        return sum(not stream.frozen for stream in self._streams)

    # -- requests ----------------------------------------------------------------------------------------

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        seen = self._see(request)
        early = self.fault(seen)
        if early is not None:
            return self._give(request, early)
        if seen.verb == "watch":
            self._last_versions.add(seen.query.get("resourceVersion", ""))
            if seen.query.get("resourceVersion") in self._expired:
                return failing(410, "Expired")
        assert self._upstream is not None
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        async with self._upstream.request(
            request.method,
            URL(f"{self._server}{request.raw_path}", encoded=True),
            data=await request.read(),
            headers={**headers, "Accept-Encoding": "identity"},
        ) as answer:
            if seen.verb == "watch" and answer.ok:
                return await self._pass_on(request, seen.kind, answer)
            body = await answer.read()
            late = self.fault_after(seen)
            if late is not None:
                return self._give(request, late)
            kept = {k: v for k, v in answer.headers.items() if k in ("Content-Type", "Retry-After")}
            return web.Response(status=answer.status, body=body, headers=kept)

    def _see(self, request: web.Request) -> Seen:
        kind, _, name, sub = read_path(request.path)
        verb = _VERBS.get(request.method) or (
            "get" if name else "watch" if "watch" in request.query else "list"
        )
        seen = Seen(verb, f"{kind.kind}/{sub}" if sub else kind.kind, name, dict(request.query), None)
        self.seen.append(seen)
        return seen

    async def _pass_on(
        self, request: web.Request, kind: str, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        stream = _Stream(kind, response, request.transport)
        self._streams.append(stream)
        rest = b""
        try:
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if not stream.frozen and (not self.losing or is_bookmark(line)):
                        await response.write(line + b"\n")
            if stream.frozen:
                await asyncio.Event().wait()  # until the client gives up
        except (ConnectionError, aiohttp.ClientError):
            pass
        finally:
            self._streams.remove(stream)
        return response


def is_bookmark(line: bytes) -> bool:
    """Return whether a line of a watch is a bookmark."""
    return bool(json.loads(line)["type"] == "BOOKMARK")
