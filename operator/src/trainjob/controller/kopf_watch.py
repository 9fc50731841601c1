"""kopf's part: login, settings, and the watch of TrainJobs, which is kept running."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf

from trainjob.api.constants import GROUP, PLURAL, VERSION
from trainjob.cluster import Manifest
from trainjob.cluster.kube.config import Access, TokenFile, build_tls
from trainjob.cluster.kube.informer import JOBS_A_PAGE, Backoff, Timeouts
from trainjob.cluster.kube.transport import TRAINJOBS, Call

# Stores that keep nothing: kopf has nothing to remember about an object that it only watches.
#
# Its own ones copy each object on each event, to look for what they might have stored in it.


class NoDiffBase(kopf.DiffBaseStorage):
    """There is no last handled state."""

    def build(self, **_: Any) -> Any:
        """Return an empty state."""
        return {}

    def fetch(self, **_: Any) -> None:
        """Return nothing."""

    def store(self, **_: Any) -> None:
        """Do nothing."""


class NoProgress(kopf.ProgressStorage):
    """There is no handler that would be tried again."""

    def fetch(self, **_: Any) -> None:
        """Return nothing."""

    def store(self, **_: Any) -> None:
        """Do nothing."""

    def purge(self, **_: Any) -> None:
        """Do nothing."""

    def touch(self, **_: Any) -> None:
        """Do nothing."""

    def clear(self, *, essence: Any) -> Any:
        """Return the state as it is."""
        return essence


# kopf's way to the API server: a session of its own, by the access that the rest of the process has.


STEADY_LOGIN_SECONDS = 60.0
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
        if now() - self._last < STEADY_LOGIN_SECONDS:
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


# What kopf is told: how to log in, how to behave, and where each event of a TrainJob goes.


Take = Callable[[str | None, Manifest], None]
"""Called with the type of each event (None for what a list held) and the object."""

SERVER_SECONDS = 120  # the API server takes whole seconds only
"""How long one watch request lasts: a sign of life at least this often, also when no bookmark is sent."""


def build_registry(take: Take, login: Login, *, silence_seconds: float) -> kopf.OperatorRegistry:
    """Return everything that kopf shall call.

    Args:
        take: gets the events of TrainJobs.
        login: gives the session to use.
        silence_seconds: how long a watch may say nothing before it is opened anew.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure_kopf(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings, silence_seconds)

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.AiohttpSession:
        return await login()

    # The group makes it ours: other projects have kinds of the same name and plural.
    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def take_event(event: Any, **_: Any) -> None:
        take(event["type"], event["object"])

    return registry


def configure(settings: kopf.OperatorSettings, silence_seconds: float) -> None:
    """Have kopf read what we need and write nothing."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.persistence.progress_storage = NoProgress()
    settings.watching.chunk_size = JOBS_A_PAGE
    settings.watching.server_timeout = SERVER_SECONDS
    settings.watching.inactivity_timeout = silence_seconds
    settings.watching.connect_timeout = 10.0
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 10.0
    settings.networking.error_backoffs = _Backoffs()
    # The process ends by its own rules; kopf would send itself SIGKILL.
    settings.process.ultimate_exiting_timeout = None


class _Backoffs:
    """Waits between attempts, without end: an API server that is away for long must not end the watch."""

    def __iter__(self) -> Iterator[float]:
        yield from (0.2, 0.5, 1.0, 2.0, 5.0)
        while True:
            yield 10.0


# Keeps kopf's watch of TrainJobs running: whatever ends or silences it, it is started again.


_log = logging.getLogger(__name__)

STEADY_SECONDS = 60.0
"""A watch that has lasted this long was a good one."""


class JobWatchFailed(Exception):
    """kopf has ended, or has not been heard of for too long."""


class JobWatch:
    """See the module.

    Args:
        access: the API server.
        take: gets every event.
        namespace: the namespace to watch; None for all.
        pace: how long a watch may be silent, and how long to wait before it is started again.
        is_served: returns when TrainJobs can be listed, or raises why not: kopf looks only at its start.
        on_call: told of every request.
        on_restart: told of every start but the first.
        on_started: told when kopf has taken the process's signal handlers.
    """

    def __init__(
        self,
        access: Access,
        take: Take,
        *,
        namespace: str | None,
        pace: Timeouts,
        is_served: Callable[[], Awaitable[object]],
        on_call: Callable[[Call], None],
        on_restart: Callable[[], None],
        on_started: Callable[[], None],
    ) -> None:
        self._access = access
        self._take = take
        self._namespace = namespace
        self._pace = pace
        self._is_served = is_served
        self._on_call = on_call
        self._on_restart = on_restart
        self._on_started = on_started
        self._heard_at = float("-inf")
        # Without events, the end of one request and the begin of the next is what there is to be heard.
        self.patience_seconds = SERVER_SECONDS + 2 * pace.inactivity

    def silent_seconds(self) -> float:
        """Return how long ago the API server was last heard of, or asked in vain."""
        return asyncio.get_running_loop().time() - self._heard_at

    async def run(self) -> None:
        """Watch until cancelled."""
        backoff = Backoff(self._pace.first_retry, self._pace.longest_retry)
        time = asyncio.get_running_loop().time
        while True:
            began = time()
            self._heard()
            try:
                await self._is_served()
                await self._run_kopf()
            except Exception as error:  # noqa: BLE001 - of kopf's, any; each is told, and none is the end
                _log.error("The watch of TrainJobs has ended: %s", str(error) or type(error).__name__)
            if time() - began > STEADY_SECONDS:
                backoff.reset()
            self._on_restart()
            await asyncio.sleep(backoff.next())

    async def _run_kopf(self) -> None:
        login = Login(self._access, self._hear_call)
        registry = build_registry(self._hear_event, login, silence_seconds=self._pace.inactivity)
        tasks = await kopf.spawn_tasks(
            registry=registry,
            standalone=True,
            clusterwide=self._namespace is None,
            namespaces=() if self._namespace is None else (self._namespace,),
        )
        self._on_started()
        # Not kopf.run_tasks: in the end it cancels every task of the process that it doesn't know.
        try:
            await self._first_end(tasks)
        finally:
            try:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                await login.close()  # also when we are cancelled while kopf still stops

    async def _first_end(self, tasks: Collection[asyncio.Task[None]]) -> None:
        while self.silent_seconds() < self.patience_seconds:
            rest = self.patience_seconds - self.silent_seconds()
            done, _ = await asyncio.wait(tasks, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if done:
                raise JobWatchFailed("kopf has stopped")
        raise JobWatchFailed(f"nothing heard for {self.patience_seconds:.0f} s")

    def _hear_event(self, kind: str | None, manifest: Manifest) -> None:
        self._heard()
        self._take(kind, manifest)

    def _hear_call(self, call: Call) -> None:
        self._heard()
        self._on_call(call)

    def _heard(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()
