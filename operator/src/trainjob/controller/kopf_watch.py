"""The watch of TrainJobs by kopf: storages, login, settings, and restarts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf

from trainjob.api.constants import GROUP, PLURAL, VERSION
from trainjob.cluster import Manifest
from trainjob.cluster.kube.config import Access, Token, build_tls
from trainjob.cluster.kube.informer import Backoff, Timeouts
from trainjob.cluster.kube.resources import TRAINJOBS
from trainjob.cluster.kube.transport import Call


class NoDiffBase(kopf.DiffBaseStorage):
    """Stores no last handled state: kopf's own storage copies each object at each event, to look for it."""

    def build(self, **_: Any) -> Any:
        """Return an empty state."""
        return {}

    def fetch(self, **_: Any) -> None:
        """Return nothing."""

    def store(self, **_: Any) -> None:
        """Do nothing."""


# kopf's own session at the API server, with the same access as the rest of the process.


STEADY_LOGIN_SECONDS = 60.0
"""A login that lasted this long resets the backoff."""


class Login:
    """Gives kopf credentials at its start, and after each 401.

    Args:
        access: the API server.
        on_call: called for every request of kopf.
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
            await asyncio.sleep(self._backoff.next())  # avoids a busy loop of 401 responses
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
        """Close the latest session: kopf closes it only if kopf itself ends normally."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _open(self) -> aiohttp.ClientSession:
        access = self._access
        tls = build_tls(access) if access.server.startswith("https:") else True
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=access.proxy,
            middlewares=(_list_nothing, _Identification(access)),
            trace_configs=[_trace(self._on_call)],
        )


_NO_OBJECT = "none,!none"
"""A label selector that nothing fits."""


async def _list_nothing(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Ask for no job where kopf lists them: it only needs to know where its watch begins.

    kopf lists all jobs, ten at a time, before it watches again after a 410, as after each restart of the API
    server. With ten thousand jobs a new one would wait for that. `JobCache` compares in fewer requests.
    """
    url = request.url
    if url.path.endswith(f"/{TRAINJOBS.plural}") and "watch" not in url.query:
        request.url = url.with_query(labelSelector=_NO_OBJECT, resourceVersion="0")
    return await handler(request)


class _Identification:
    """Adds the current token to each request: a session outlives many tokens."""

    def __init__(self, access: Access) -> None:
        self._token = Token(access.read_token, asyncio.get_running_loop().time)
        self._server_name = access.server_name

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        token = await self._token.current()
        if token:
            request.headers["Authorization"] = token
        if self._server_name is not None:
            request.server_hostname = self._server_name
        response = await handler(request)
        if response.status == 401:
            await self._token.renew(token)  # for kopf's next try, in another session
        return response


def _trace(on_call: Callable[[Call], None]) -> aiohttp.TraceConfig:
    """Report each request once its response begins, or once it has failed."""

    async def begin(_session: aiohttp.ClientSession, context: SimpleNamespace, _: object) -> None:
        context.began = asyncio.get_running_loop().time()

    async def end(
        _session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestEndParams
    ) -> None:
        report(context, params.url.path, "watch" in params.url.query, params.response.status)

    async def fail(
        _session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestExceptionParams
    ) -> None:
        if not isinstance(params.exception, asyncio.CancelledError):  # a cancelled request hasn't failed
            report(context, params.url.path, "watch" in params.url.query, 0)

    def report(context: SimpleNamespace, path: str, is_watch: bool, code: int) -> None:
        if path.endswith(f"/{TRAINJOBS.plural}"):
            verb = "watch" if is_watch else "list"
            seconds = asyncio.get_running_loop().time() - context.began
            on_call(Call(verb, TRAINJOBS.group, TRAINJOBS.plural, code, seconds))

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(begin)
    trace.on_request_end.append(end)
    trace.on_request_exception.append(fail)
    return trace


# kopf's configuration: login, settings, and the handler of TrainJob events.


Take = Callable[[str, Manifest], None]
"""Called with the type of each event and the object."""

SERVER_SECONDS = 120  # the API server accepts whole seconds only
"""How long one watch request lasts; even without bookmarks something is received at least this often."""


def build_registry(take: Take, login: Login, *, silence_seconds: float) -> kopf.OperatorRegistry:
    """Return the handlers that kopf calls.

    Args:
        take: called with the events of TrainJobs.
        login: returns the session to use.
        silence_seconds: how long a watch may be silent before it is opened again.
    """
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure_kopf(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings, silence_seconds)

    @kopf.on.login(registry=registry)
    async def log_in(**_: Any) -> kopf.AiohttpSession:
        return await login()

    # The group is needed: other projects have kinds of the same name and plural.
    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def take_event(event: Any, **_: Any) -> None:
        take(event["type"], event["object"])

    return registry


IDLE_SECONDS = 0.1
"""How long kopf holds the latest event of each job. With its own 5 s each job that trains had one in memory
all the time, and 500 that were deleted together took 16 MB. With 0 it would hand out none.
"""


def configure(settings: kopf.OperatorSettings, silence_seconds: float) -> None:
    """Configure kopf to read TrainJobs and write nothing."""
    settings.posting.enabled = False
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.watching.server_timeout = SERVER_SECONDS
    settings.watching.inactivity_timeout = silence_seconds
    settings.watching.connect_timeout = 10.0
    settings.networking.request_timeout = 30.0
    settings.networking.connect_timeout = 10.0
    settings.networking.error_backoffs = _Backoffs()
    # The process ends by its own rules; kopf would send SIGKILL to it.
    settings.process.ultimate_exiting_timeout = None


class _Backoffs:
    """Endless waits between attempts: a long outage of the API server must not end the watch.

    They are short for a minute: with many objects, a new API server refuses watches for so long (429).
    """

    def __iter__(self) -> Iterator[float]:
        yield from (0.2, 0.5, 1.0, *repeat(2.0, 30))
        while True:
            yield 10.0


# The watch of TrainJobs, restarted whenever it ends or is silent for too long.


_log = logging.getLogger(__name__)

STEADY_SECONDS = 60.0
"""A watch that lasted this long resets the backoff."""


class JobWatchFailed(Exception):
    """kopf has ended, or has been silent for too long."""


class JobWatch:
    """Runs kopf's watch of TrainJobs, and restarts it whenever it ends or is silent for too long.

    Args:
        access: the API server.
        take: called with every event.
        namespace: the namespace to watch; None for all.
        timeouts: how long a watch may be silent, and the waits before it is restarted.
        is_served: returns when TrainJobs can be listed, else raises; kopf looks for them only at its start.
        on_call: called for every request.
        on_begin: called whenever the watch begins at a new version: changes before that may be missed.
        on_restart: called before every start but the first.
        on_started: called when kopf has replaced the process's signal handlers.
    """

    def __init__(
        self,
        access: Access,
        take: Take,
        *,
        namespace: str | None,
        timeouts: Timeouts,
        is_served: Callable[[], Awaitable[object]],
        on_call: Callable[[Call], None],
        on_begin: Callable[[], None],
        on_restart: Callable[[], None],
        on_started: Callable[[], None],
    ) -> None:
        self._access = access
        self._take = take
        self._namespace = namespace
        self._timeouts = timeouts
        self._is_served = is_served
        self._on_call = on_call
        self._on_begin = on_begin
        self._on_restart = on_restart
        self._on_started = on_started
        self._received_at = float("-inf")
        # Without events, only the end of one request and the start of the next are noticed.
        self.patience_seconds = SERVER_SECONDS + 2 * timeouts.inactivity

    def silent_seconds(self) -> float:
        """Return the seconds since the latest event, response, failed request or restart."""
        return asyncio.get_running_loop().time() - self._received_at

    async def run(self) -> None:
        """Watch until cancelled."""
        backoff = Backoff(self._timeouts.first_retry, self._timeouts.longest_retry)
        time = asyncio.get_running_loop().time
        while True:
            began = time()
            self._note_sign()
            try:
                await self._is_served()
                await self._run_kopf()
            except Exception as error:  # noqa: BLE001 - any error of kopf's is logged, and none is the end
                _log.error("The watch of TrainJobs has ended: %s", str(error) or type(error).__name__)
            if time() - began > STEADY_SECONDS:
                backoff.reset()
            self._on_restart()
            await asyncio.sleep(backoff.next())

    async def _run_kopf(self) -> None:
        login = Login(self._access, self._on_request)
        registry = build_registry(self._on_event, login, silence_seconds=self._timeouts.inactivity)
        tasks = await kopf.spawn_tasks(
            registry=registry,
            standalone=True,
            clusterwide=self._namespace is None,
            namespaces=() if self._namespace is None else (self._namespace,),
        )
        self._on_started()
        # Not kopf.run_tasks: at its end it cancels every task of the process that it doesn't know.
        try:
            await self._first_end(tasks)
        finally:
            try:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                await login.close()  # even if this task is cancelled while kopf stops

    async def _first_end(self, tasks: Collection[asyncio.Task[None]]) -> None:
        while self.silent_seconds() < self.patience_seconds:
            rest = self.patience_seconds - self.silent_seconds()
            done, _ = await asyncio.wait(tasks, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if done:
                raise JobWatchFailed("kopf has stopped")
        raise JobWatchFailed(f"nothing received for {self.patience_seconds:.0f} s")

    def _on_event(self, kind: str, manifest: Manifest) -> None:
        self._note_sign()
        self._take(kind, manifest)

    def _on_request(self, call: Call) -> None:
        self._note_sign()
        self._on_call(call)
        if call.verb == "list" and call.code == 200:
            self._on_begin()

    def _note_sign(self) -> None:
        self._received_at = asyncio.get_running_loop().time()
