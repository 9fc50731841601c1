"""Requests to the API server over one shared session: TLS, token, timeouts, error classes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode
from weakref import WeakSet

import aiohttp
from yarl import URL

from trainjob.api.constants import GROUP, KIND, PLURAL, VERSION
from trainjob.cluster.kube.config import Access, TokenFile, build_tls
from trainjob.cluster.protocol import AlreadyExists, ClusterError, Conflict, NotFound, Refused, Unavailable

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


# Kinds of objects, and their paths at the API server.


@dataclass(frozen=True)
class Resource:
    """One kind of namespaced objects.

    Attributes:
        group: the API group; empty for the core group.
        version: the group's version.
        plural: the name in the path.
        kind: the `kind` of a manifest.
    """

    group: str
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        """The `apiVersion` of a manifest."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return the path of one object, or of all in a namespace or (None) in every namespace."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        place = f"/namespaces/{namespace}" if namespace is not None else ""
        rest = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{place}/{self.plural}{rest}"


TRAINJOBS = Resource(GROUP, VERSION, PLURAL, KIND)
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
NETWORK_POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
SECRETS = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
EVENTS = Resource("", "v1", "events", "Event")

DEPENDENTS = (PODS, SERVICES, CLAIMS, NETWORK_POLICIES)
"""The kinds of a job's objects that are watched by label."""

UNREAD = (SECRETS,)
"""Created for jobs and never read: a permission to read one Secret is one to read all."""

BY_KIND = {resource.kind: resource for resource in (TRAINJOBS, *DEPENDENTS, *UNREAD, CONFIG_MAPS, EVENTS)}


# Errors of the API server, by their meaning to the caller.


LONGEST_WAIT = 60.0
"""Seconds, the limit of a requested wait: a proxy that asks for a day must not stop a job for a day."""

LONGEST_EXCERPT = 200
"""Bytes of an answer that is no `Status`, for the message."""


class Expired(Unavailable):
    """The resourceVersion or the continuation of a list is too old (HTTP 410): list again."""


class Unauthorized(Unavailable):
    """The token isn't accepted (HTTP 401): it may have been rotated."""


def error_of(code: int, body: bytes, retry_after: str | None = None) -> ClusterError:
    """Return the error for a response that is no success.

    Args:
        code: the HTTP status, outside 200-299.
        body: a `Status` object as JSON, or anything else from a proxy or for a missing API.
        retry_after: the header of that name.
    """
    status = _status_object(body)
    if status is None:
        return _foreign_error(code, body, seconds_of(retry_after))
    return error_of_status(code, status, seconds_of(retry_after))


def error_of_status(code: int, status: Mapping[str, Any], retry_after: float | None = None) -> ClusterError:
    """Return the error for a `Status` object and the HTTP status beside it."""
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or reason or f"HTTP {code}")
    given = status.get("details")
    details: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    match code:
        case 404:
            return NotFound(message)
        case 409:
            return AlreadyExists(message) if reason == "AlreadyExists" else Conflict(message)
        case 401:
            return Unauthorized(message)
        case 410:
            return Expired(message)
        case 408 | 429:
            return Unavailable(message, _wait(retry_after, details))
    if code == 422 and "metadata.uid" in _causes(details, "field"):
        return Conflict(message)  # the response to a patch with the uid of another object
    if 400 <= code < 500:
        return Refused(_cause(details) or reason or f"HTTP {code}", message)
    return Unavailable(message, _wait(retry_after, details))


def seconds_of(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header; None for a date, which the API server never sends."""
    try:
        seconds = float(retry_after) if retry_after is not None else None
    except ValueError:
        return None
    return min(seconds, LONGEST_WAIT) if seconds is not None and 0 <= seconds < float("inf") else None


def _status_object(body: bytes) -> dict[str, Any] | None:
    try:
        status = json.loads(body)
    except ValueError:
        return None
    return status if isinstance(status, dict) and status.get("kind") == "Status" else None


def _foreign_error(code: int, body: bytes, retry_after: float | None) -> ClusterError:
    """Return the error for a proxy's page or a missing API: their 404 says nothing about one object."""
    excerpt = body[:LONGEST_EXCERPT].decode(errors="replace").strip()
    message = f"HTTP {code}: {excerpt}" if excerpt else f"HTTP {code}"
    if code == 401:
        return Unauthorized(message)
    if code == 410:
        return Expired(message)
    if code == 413:
        return Refused("RequestEntityTooLarge", message)
    return Unavailable(message, retry_after)


def _cause(details: Mapping[str, Any]) -> str:
    """Return the one cause that is more precise than the reason: `Forbidden` may be a namespace's end."""
    return "NamespaceTerminating" if "NamespaceTerminating" in _causes(details, "reason") else ""


def _causes(details: Mapping[str, Any], key: str) -> list[object]:
    causes = details.get("causes")
    if not isinstance(causes, list):
        return []
    return [cause.get(key) for cause in causes if isinstance(cause, Mapping)]


def _wait(retry_after: float | None, details: Mapping[str, Any]) -> float | None:
    if retry_after is not None:
        return retry_after
    seconds = details.get("retryAfterSeconds")
    return min(float(seconds), LONGEST_WAIT) if isinstance(seconds, (int, float)) and seconds > 0 else None


JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"

_USER_AGENT = f"trainjob-controller/{version('trainjob')}"
"""The part before the slash becomes the field manager of written objects."""

CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS = 60.0
FAREWELL_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request.

    Attributes:
        verb: as RBAC writes it.
        method: as HTTP writes it.
        resource: the kind of the objects.
        path: of the URL.
        subresource: of an object, such as `status`.
        query: of the URL.
        body: the content that is sent.
        content_type: of `body`.
        accept: the content type of the response.
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
        access: the server's address and the credentials.
        on_call: called after every request.
        timeout: seconds for one whole request, except watches.
        connections: the most open connections, watches included.

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
        # aiohttp doesn't wait for the TLS shutdown of connections whose requests were cancelled.
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
        """Send a request and return the body of the response.

        Raises:
            ClusterError: the request failed.
        """
        if self._token_file is None:
            return await self._send_once(request)
        sent = self._token_file.current()
        try:
            return await self._send_once(request)
        except Unauthorized:
            self._token_file.reread()  # another request may have read the same new token already
            if self._token_file.current() == sent:
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
            if response.status == 401 and self._token_file is not None:
                self._token_file.reread()  # for the next try: a failed watch is opened again anyway
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
            # None: the caller cancelled it before an answer came, which says nothing about the server
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
    """Abort a streamed response without a TLS shutdown, which a dead peer never answers."""
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
        "Accept-Encoding": "identity",  # decompression costs more than a cluster's network
    }
    return {**headers, "Authorization": f"Bearer {token}"} if token else headers


def _unavailable(request: Request, error: BaseException) -> Unavailable:
    told = str(error) or type(error).__name__
    return Unavailable(f"{request.verb} {request.resource.plural}: no answer from the API server ({told})")
