"""Requests to the API server over one shared session: TLS, token, time limits, errors by their meaning."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from types import TracebackType
from typing import Self
from urllib.parse import urlencode
from weakref import WeakSet

import aiohttp
from yarl import URL

from trainjob.cluster.errors import Unavailable
from trainjob.cluster.kube.access import Access
from trainjob.cluster.kube.answers import Unauthorized, error_of
from trainjob.cluster.kube.calls import Call, OnCall
from trainjob.cluster.kube.resources import Resource
from trainjob.cluster.kube.tls import build_tls
from trainjob.cluster.kube.token import TokenFile

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

_USER_AGENT = f"trainjob-controller/{version('trainjob')}"
"""Its first word becomes the field manager of what is written."""

CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS = 60.0
FAREWELL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        verb: as RBAC writes it.
        method: as HTTP writes it.
        resource: what it is about.
        path: below the server's address.
        subresource: of an object, such as `status`.
        query: behind the path.
        body: what is sent.
        content_type: how to read `body`.
        accept: the form of the answer.
    """

    verb: str
    method: str
    resource: Resource
    path: str
    subresource: str = ""
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON


class Transport:
    """One session with one API server; an asynchronous context manager.

    Args:
        access: where it is and who we are.
        on_call: told of every request.
        timeout: seconds for one whole request, watches aside.
        connections: how many are open at most, watches included.

    Raises:
        InvalidAccess: a certificate or key can't be read.
    """

    def __init__(self, access: Access, *, on_call: OnCall, timeout: float, connections: int) -> None:
        self._server = access.server.rstrip("/")
        self._server_name = access.server_name
        self._tls = build_tls(access) if access.server.startswith("https:") else None
        self._token = access.token
        self._token_file: TokenFile | None = None
        self._access = access
        self._on_call = on_call
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_SECONDS)
        self._connections = connections
        self._headers: dict[tuple[str, str], Mapping[str, str]] = {}
        self._headers_token: str | None = None
        self._session: aiohttp.ClientSession | None = None
        self._sockets: WeakSet[socket.socket] = WeakSet()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        if self._access.token_file is not None:
            self._token_file = TokenFile(self._access.token_file, loop.time)
        connector = aiohttp.TCPConnector(
            limit=self._connections,
            ssl=self._tls if self._tls is not None else True,
            keepalive_timeout=KEEPALIVE_SECONDS,
            socket_factory=self._open_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=self._timeout
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is None:
            return
        await self._session.close()
        # aiohttp doesn't wait for connections whose requests were cancelled: their TLS says farewell first.
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                while any(opened.fileno() != -1 for opened in self._sockets):  # noqa: ASYNC110 - aiohttp tells nobody
                    await asyncio.sleep(0.01)

    def _open_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        opened = socket.socket(family, kind, protocol)
        self._sockets.add(opened)
        return opened

    async def send(self, request: Request) -> bytes:
        """Send a request and return the body of its answer.

        Raises:
            ClusterError: it was not a success.
        """
        if self._token_file is None:
            return await self._send_once(request)
        sent = self._token_file.current()
        try:
            return await self._send_once(request)
        except Unauthorized:
            self._token_file.reread()  # by another request, the same new one may have been read already
            if self._token_file.current() == sent:
                raise
            return await self._send_once(request)

    @asynccontextmanager
    async def open(self, request: Request, inactivity: float) -> AsyncIterator[AsyncGenerator[bytes]]:
        """Send a request whose answer goes on, and give its chunks as they come.

        Args:
            request: what to send.
            inactivity: seconds without a byte after which the connection is taken for dead.

        Raises:
            ClusterError: it was not a success, or the connection broke, also while reading the chunks.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=inactivity)
        async with self._answer(request, limits) as response:
            if response.status == 401 and self._token_file is not None:
                self._token_file.reread()  # for the next try: a watch is opened again anyway
            if not response.ok:
                raise error_of(response.status, await response.read(), response.headers.get("Retry-After"))
            try:
                yield _chunks(request, response)
            finally:
                _break_off(response)

    async def _send_once(self, request: Request) -> bytes:
        async with self._answer(request, self._timeout) as response:
            body = await response.read()
            if 200 <= response.status < 300:
                return body
            raise error_of(response.status, body, response.headers.get("Retry-After"))

    @asynccontextmanager
    async def _answer(
        self, request: Request, limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("the client is used outside its context")
        loop = asyncio.get_running_loop()
        began = loop.time()
        code: int | None = None
        try:
            async with self._session.request(
                request.method,
                self._url(request),
                data=request.body,
                headers=self._headers_of(request),
                timeout=limits,
                allow_redirects=False,
                server_hostname=self._server_name,
            ) as response:
                code = response.status
                if limits is not self._timeout:
                    self._tell(request, code, loop.time() - began)
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            code = 0
            raise _unavailable(request, error) from error
        finally:
            # None: it was cancelled by ourselves before an answer came, and says nothing of the server
            if code == 0 or (code is not None and limits is self._timeout):
                self._tell(request, code, loop.time() - began)

    def _tell(self, request: Request, code: int, seconds: float) -> None:
        plural, sub = request.resource.plural, request.subresource
        resource = f"{plural}/{sub}" if sub else plural
        self._on_call(Call(request.verb, request.resource.group, resource, code, seconds))

    def _url(self, request: Request) -> URL:
        query = f"?{urlencode(request.query)}" if request.query else ""
        return URL(f"{self._server}{request.path}{query}", encoded=True)

    def _headers_of(self, request: Request) -> Mapping[str, str]:
        token = self._token_file.current() if self._token_file is not None else self._token
        if token != self._headers_token:
            self._headers.clear()
            self._headers_token = token
        form = request.content_type, request.accept
        if form not in self._headers:
            self._headers[form] = _build_headers(*form, token)
        return self._headers[form]


def _break_off(response: aiohttp.ClientResponse) -> None:
    """End an answer that goes on, without the farewell of TLS: a peer that is dead never returns it."""
    if response.connection is not None and isinstance(response.connection.transport, asyncio.WriteTransport):
        response.connection.transport.abort()


async def _chunks(request: Request, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _unavailable(request, error) from error


def _build_headers(content_type: str, accept: str, token: str | None) -> dict[str, str]:
    headers = {
        "User-Agent": _USER_AGENT,
        "Content-Type": content_type,
        "Accept": accept,
        "Accept-Encoding": "identity",  # unpacking costs more than a cluster's network
    }
    return {**headers, "Authorization": f"Bearer {token}"} if token else headers


def _unavailable(request: Request, error: BaseException) -> Unavailable:
    told = str(error) or type(error).__name__
    return Unavailable(f"{request.verb} {request.resource.plural}: no answer from the API server ({told})")
