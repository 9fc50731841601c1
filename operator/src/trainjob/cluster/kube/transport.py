"""Requests to the API server over one shared session: TLS, token, timeouts."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from weakref import WeakSet

import aiohttp
from yarl import URL

from trainjob.cluster.kube.config import Access, Token, build_tls
from trainjob.cluster.kube.resources import Request
from trainjob.cluster.kube.responses import TooLong, Unauthorized, error_of, unreachable
from trainjob.cluster.protocol import ClusterError, RequestFailure

# Finished requests, for metrics and for the test of the permissions.


@dataclass(frozen=True, slots=True)
class Call:
    """One request, answered or not; one that the caller cancelled before an answer is not reported.

    Attributes:
        verb: as RBAC writes it: `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
        group: the API group.
        resource: the plural, with the subresource behind a slash.
        code: the HTTP status; 0 when there was no answer.
        seconds: until the whole answer arrived; for a watch, until it began.
    """

    verb: str
    group: str
    resource: str
    code: int
    seconds: float


OnCall = Callable[[Call], None]


def ignore(_call: Call) -> None:
    """Do nothing."""


CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS = 60.0
FAREWELL_SECONDS = 1.0


class Transport:
    """One session with one API server; an asynchronous context manager.

    Args:
        access: the server's address and the credentials.
        user_agent: the part before the slash becomes the field manager of written objects.
        on_call: called after every request.
        timeout: seconds for one whole request, except watches.
        connections: the most open connections, watches included.

    Raises:
        InvalidAccess: a certificate or key can't be read.
    """

    def __init__(
        self, access: Access, *, user_agent: str, on_call: OnCall, timeout: float, connections: int
    ) -> None:
        self._server = access.server.rstrip("/")
        self._server_name = access.server_name
        self._tls = build_tls(access) if access.server.startswith("https:") else None
        self._access = access
        self._user_agent = user_agent
        self._on_call = on_call
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_SECONDS)
        self._connections = connections
        self._headers: dict[tuple[str, str], Mapping[str, str]] = {}
        self._headers_token = ""
        self._token = Token(None, lambda: 0.0)
        self._session: aiohttp.ClientSession | None = None
        self._sockets: WeakSet[socket.socket] = WeakSet()

    async def __aenter__(self) -> Self:
        self._token = Token(self._access.read_token, asyncio.get_running_loop().time)
        connector = aiohttp.TCPConnector(
            limit=self._connections,
            ssl=self._tls if self._tls is not None else True,
            keepalive_timeout=KEEPALIVE_SECONDS,
            socket_factory=self._open_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            proxy=self._access.proxy,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is None:
            return
        await self._session.close()
        # aiohttp doesn't wait for the TLS shutdown of connections whose requests were cancelled.
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                while any(opened.fileno() != -1 for opened in self._sockets):  # noqa: ASYNC110 - aiohttp has no event for it
                    await asyncio.sleep(0.01)

    def _open_socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        opened = socket.socket(family, kind, protocol)
        self._sockets.add(opened)
        return opened

    async def send(self, request: Request) -> bytes:
        """Send a request and return the body of the response.

        Raises:
            ClusterError: the request failed.
        """
        sent = await self._token.current()
        try:
            return await self._send_once(request)
        except Unauthorized:
            if not await self._token.renew(sent):
                raise
            return await self._send_once(request)

    @asynccontextmanager
    async def open(self, request: Request, inactivity: float) -> AsyncIterator[AsyncGenerator[bytes]]:
        """Send a request with a streamed response, and yield the iterator of its chunks.

        Args:
            request: what to send.
            inactivity: seconds without a byte after which the connection counts as dead.

        Raises:
            ClusterError: the request failed, or the connection broke, also while the chunks were read.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=inactivity)
        async with self._answer(request, limits) as response:
            if response.status == 401:
                await self._token.renew(self._headers_token)  # for the next try of the caller
            if not response.ok:
                raise self._error_of(request, response, await response.read())
            try:
                yield self._chunks(request, response)
            finally:
                _break_off(response)

    async def _send_once(self, request: Request) -> bytes:
        async with self._answer(request, self._timeout) as response:
            if not 200 <= response.status < 300:
                raise self._error_of(request, response, await response.read())
            if request.most_bytes is None:
                return await response.read()
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > request.most_bytes:
                    raise TooLong(f"{request.verb} {request.target}: more than {request.most_bytes} bytes")
            return bytes(body)

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
                URL(f"{self._server}{request.path}", encoded=True),
                data=request.body,
                headers=await self._headers_of(request),
                timeout=limits,
                allow_redirects=False,
                server_hostname=self._server_name,
            ) as response:
                code = response.status
                if limits is not self._timeout:
                    self._report(request, code, loop.time() - began)
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            code = 0
            raise unreachable(self._failure(request), describe_network_error(error)) from error
        finally:
            # None: the caller cancelled it before an answer came, which says nothing about the server
            if code == 0 or (code is not None and limits is self._timeout):
                self._report(request, code, loop.time() - began)

    def _report(self, request: Request, code: int, seconds: float) -> None:
        self._on_call(Call(request.verb, request.resource.group, request.target, code, seconds))

    def garbled(self, request: Request, why: str) -> ClusterError:
        """Return the error for a response that can't be read: something else than Kubernetes answers."""
        return unreachable(self._failure(request), why)

    def _failure(self, request: Request) -> RequestFailure:
        return RequestFailure(request.verb, request.target, request.name, self._server)

    def _error_of(self, request: Request, response: aiohttp.ClientResponse, body: bytes) -> ClusterError:
        retry_after = response.headers.get("Retry-After")
        return error_of(response.status, body, retry_after, self._failure(request))

    async def _headers_of(self, request: Request) -> Mapping[str, str]:
        token = await self._token.current()
        if token != self._headers_token:
            self._headers.clear()
            self._headers_token = token
        form = request.content_type, request.accept
        if form not in self._headers:
            self._headers[form] = {
                "User-Agent": self._user_agent,
                "Content-Type": request.content_type,
                "Accept": request.accept,
                "Accept-Encoding": "identity",  # decompression costs more than a cluster's network
                **({"Authorization": token} if token else {}),
            }
        return self._headers[form]

    async def _chunks(self, request: Request, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
        try:
            async for chunk in response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(self._failure(request), describe_network_error(error)) from error


def _break_off(response: aiohttp.ClientResponse) -> None:
    """Abort a streamed response without a TLS shutdown, which a dead peer never answers."""
    if response.connection is not None and isinstance(response.connection.transport, asyncio.WriteTransport):
        response.connection.transport.abort()


def describe_network_error(error: BaseException) -> str:
    """Return the cause of a request without a response, in a few words."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"no answer within {CONNECT_SECONDS:g} s"
    if isinstance(error, aiohttp.SocketTimeoutError):
        return "it has fallen silent"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    if isinstance(cause, OSError) and cause.errno and cause.errno > 0 and not isinstance(cause, ssl.SSLError):
        return os.strerror(cause.errno)
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror
    return " ".join(str(cause).split()) or type(error).__name__
