"""kopf's way to the API server: a session of its own, by the access that the rest of the process has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import aiohttp
import kopf

from trainjob.cluster.kube.access import Access
from trainjob.cluster.kube.backoff import Backoff
from trainjob.cluster.kube.calls import Call
from trainjob.cluster.kube.resources import TRAINJOBS
from trainjob.cluster.kube.tls import build_tls
from trainjob.cluster.kube.token import TokenFile

STEADY_SECONDS = 60.0
"""A login that has lasted this long was a good one."""


class Login:
    """Answers kopf whenever it needs credentials: at the start, and after each 401.

    Args:
        access: the API server.
        on_call: told of every request of kopf's.
    """

    def __init__(self, access: Access, on_call: Callable[[Call], None]) -> None:
        self._access = access
        self._on_call = on_call
        self._backoff = Backoff()
        self._last = float("-inf")
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, **_: object) -> kopf.AiohttpSession:
        """Return a new session."""
        now = asyncio.get_running_loop().time
        if now() - self._last < STEADY_SECONDS:
            await asyncio.sleep(self._backoff.next())  # a 401 is answered in no time, again and again
        else:
            self._backoff.reset()
        self._last = now()
        await self.close()
        self._session = self._open()
        return kopf.AiohttpSession(
            server=self._access.server,
            default_namespace=self._access.namespace,
            aiohttp_session=self._session,
        )

    async def close(self) -> None:
        """Close the session that was given last: kopf does so only where it ends in order."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        access = self._access
        tls = build_tls(access) if access.server.startswith("https:") else True
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            middlewares=(_Identification(access),),
            trace_configs=[_trace(self._on_call)],
        )


class _Identification:
    """Puts the current token on each request: a session outlives many tokens."""

    def __init__(self, access: Access) -> None:
        loop = asyncio.get_running_loop()
        self._file = TokenFile(access.token_file, loop.time) if access.token_file is not None else None
        self._token = access.token
        self._server_name = access.server_name

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        token = self._file.current() if self._file is not None else self._token
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        if self._server_name is not None:
            request.server_hostname = self._server_name
        return await handler(request)


def _trace(on_call: Callable[[Call], None]) -> aiohttp.TraceConfig:
    """Report each request once its answer begins, or has failed."""

    async def begin(_session: aiohttp.ClientSession, context: SimpleNamespace, _: object) -> None:
        context.began = asyncio.get_running_loop().time()

    async def end(
        _session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams
    ) -> None:
        tell(context, params.url.path, "watch" in params.url.query, params.response.status)

    async def fail(
        _session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestExceptionParams
    ) -> None:
        if not isinstance(params.exception, asyncio.CancelledError):  # else by ourselves
            tell(context, params.url.path, "watch" in params.url.query, 0)

    def tell(context: SimpleNamespace, path: str, is_watch: bool, code: int) -> None:
        if path.endswith(f"/{TRAINJOBS.plural}"):
            verb = "watch" if is_watch else "list"
            seconds = asyncio.get_running_loop().time() - context.began
            on_call(Call(verb, TRAINJOBS.group, TRAINJOBS.plural, code, seconds))

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(begin)
    trace.on_request_end.append(end)
    trace.on_request_exception.append(fail)
    return trace
