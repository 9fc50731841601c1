"""Lists and watches of the API server: as changes, and as caches that are kept equal to it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass

from trainjob.cluster.kube.cache import NamespacedName, Store, is_newer, namespaced_name, version_of
from trainjob.cluster.kube.client import ApiClient, WatchEvent
from trainjob.cluster.kube.resources import PODS, TRAINJOBS, Resource
from trainjob.cluster.kube.responses import Expired, TooLong
from trainjob.cluster.protocol import ClusterError, Manifest, NotFound, Unavailable, happens_within
from trainjob.core.names import JobKey

# Lists and watches of the API server: as changes, and as a store that is kept equal to it.


# Intervals and timeouts of watches.


@dataclass(frozen=True)
class Timeouts:
    """Intervals and timeouts of the caches, in seconds.

    Attributes:
        watch: how long one watch lasts before it is opened again; a random part is added.
        inactivity: how long a watch may be silent; the API server sends a bookmark about once a minute.
        resync: how old a list may get before a new one is compared with the store, to find lost deletions.
        sweep: how often the jobs, which kopf watches, are compared with a list in any case.
        collect: between two sweeps for agent programs that no job needs; a program found twice is deleted.
            Longer than any pass over a job, which may be about to create pods with such a program.
        first_retry: the wait after a failure; see `Backoff`.
        longest_retry: the limit of the waits after failures in a row.
        positions: between two requests for the positions of jobs in a queue.
    """

    watch: float = 300.0
    inactivity: float = 70.0
    resync: float = 1800.0
    sweep: float = 300.0
    collect: float = 900.0
    first_retry: float = 0.2
    longest_retry: float = 30.0
    positions: float = 30.0


# Waits after failures, random so that many clients don't retry at once.


FIRST_SECONDS = 0.2
LONGEST_SECONDS = 30.0


class Backoff:
    """Waits that double with each failure, up to a limit; a random part, at least half, of each is used.

    Args:
        first: seconds after the first failure, before the random part is taken.
        longest: the limit, in seconds.
        rand: returns a number from 0 to 1.
    """

    def __init__(
        self,
        first: float = FIRST_SECONDS,
        longest: float = LONGEST_SECONDS,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self._first = first
        self._longest = longest
        self._rand = rand
        self._failures = 0

    @property
    def failures(self) -> int:
        """The number of failures in a row."""
        return self._failures

    def next(self, asked: float | None = None) -> float:
        """Count a failure and return the seconds to wait, no fewer than the server asked for."""
        limit = min(self._longest, self._first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return max(limit * (0.5 + self._rand() / 2), asked or 0.0)

    def reset(self) -> None:
        """Forget the failures after a success."""
        self._failures = 0


# Complete lists, page by page.


PAGE = 500
PODS_A_PAGE = 100
FEW_JOBS, MANY_JOBS = 10, 100
"""A whole page is in memory: its text, and its objects before they are reduced to what is kept. A job has up
to 1.5 MB, as much as etcd stores, and usually some 5 kB; a pod of a large job has some 100 kB.
"""

MOST_BYTES = 4 * 1024 * 1024
"""Of a page of more than a few jobs."""

_PAGES = {TRAINJOBS: (FEW_JOBS, MANY_JOBS), PODS: (PODS_A_PAGE, PODS_A_PAGE)}
"""The most objects of the first page, and of any; each has up to twice as many as the one before."""


@dataclass(frozen=True)
class Scope:
    """Which objects are listed and watched.

    Attributes:
        resource: their kind.
        namespace: their namespace; None for every namespace.
        selector: label selector; empty for all objects.
        fields: field selector; empty for all objects.
    """

    resource: Resource
    namespace: str | None = None
    selector: str = ""
    fields: str = ""


@dataclass(frozen=True)
class Seen:
    """An object exists, or has changed."""

    manifest: Manifest


@dataclass(frozen=True)
class Gone:
    """An object was deleted; `manifest` is its last state."""

    manifest: Manifest


@dataclass(frozen=True)
class Listed:
    """All objects that exist at a resourceVersion have been reported.

    Attributes:
        version: that resourceVersion.
        objects: their namespaced names and uids.
    """

    version: str = ""
    objects: tuple[tuple[NamespacedName, str], ...] = ()


@dataclass(frozen=True)
class Bookmark:
    """The watch is alive."""


@dataclass(frozen=True)
class Failed:
    """A list or a watch failed; it is repeated after a wait.

    Attributes:
        error: the reason.
        failures: how many there were in a row.
        wait: seconds.
    """

    error: ClusterError
    failures: int
    wait: float


Change = Seen | Gone | Listed | Bookmark | Failed


async def list_all(
    api: ApiClient, scope: Scope, *, metadata_only: bool = False
) -> AsyncGenerator[Seen | Listed]:
    """Yield each object when its page arrives, so that only one page is in memory, and then the list's end.

    Pages grow while they are small: with ten thousand jobs, ten a page, the requests would take longest.

    Raises:
        ClusterError: the list failed; a part of it has been yielded.
    """
    few, most = (PAGE, PAGE) if metadata_only else _PAGES.get(scope.resource, (PAGE, PAGE))
    limit: int | None = few
    seen: list[tuple[NamespacedName, str]] = []
    continuation = ""
    while True:
        try:
            page = await api.list(
                scope.resource,
                scope.namespace,
                selector=scope.selector,
                fields=scope.fields,
                limit=limit,
                continuation=continuation,
                metadata_only=metadata_only,
                most_bytes=MOST_BYTES if limit is not None and limit > few else None,
            )
        except TooLong:
            limit = most = few
            continue
        except Expired:
            if limit is None:
                raise
            # The list was compacted away between two pages; this can't happen to a list in one page.
            limit, continuation, seen = None, "", []
            continue
        for item in page.get("items") or ():
            # In lists of Kubernetes' own kinds, the items lack these fields.
            item.setdefault("apiVersion", scope.resource.api_version)
            item.setdefault("kind", scope.resource.kind)
            seen.append((namespaced_name(item), item["metadata"]["uid"]))
            yield Seen(item)
        limit = min(2 * limit, most) if limit is not None else None
        continuation = (page.get("metadata") or {}).get("continue") or ""
        if not continuation:
            yield Listed(version_of(page), tuple(seen))
            return


async def compare(
    api: ApiClient,
    scope: Scope,
    store: Store,
    take: Callable[[Manifest], object],
    *,
    metadata_only: bool = False,
) -> None:
    """List all objects, pass each to `take`, and drop deleted ones from the store.

    Raises:
        ClusterError: the list failed.
    """
    async with aclosing(list_all(api, scope, metadata_only=metadata_only)) as changes:
        async for change in changes:
            if isinstance(change, Seen):
                take(change.manifest)
            else:
                store.retain(change.objects, change.version)


# List, then watch, and list again when in doubt.


FAILURES_BEFORE_LIST = 3
"""Without an event in between: the API server may fail to continue from the requested version without
reporting that.
"""


async def follow(api: ApiClient, scope: Scope, timeouts: Timeouts) -> AsyncGenerator[Change]:
    """Yield the existing objects and then their changes, through failures of every kind, without an end."""
    backoff = Backoff(timeouts.first_retry, timeouts.longest_retry)
    time = asyncio.get_running_loop().time
    version, listed_at = "", 0.0  # the version of the latest list or event; empty: list first
    doubts = 0  # failures since then
    while True:
        opened: float | None = None
        try:
            if not version or time() - listed_at > timeouts.resync:
                began = time()
                async with aclosing(list_all(api, scope)) as changes:
                    async for change in changes:
                        yield change
                        if isinstance(change, Listed):
                            version, listed_at, doubts = change.version, began, 0
            opened, heard = time(), False
            async with aclosing(_watch(api, scope, version, timeouts)) as events:
                async for event in events:
                    heard, doubts = True, 0
                    backoff.reset()
                    version = version_of(event.object) or version
                    yield _change_of(event)
            if not heard and time() - opened < min(1.0, timeouts.watch):
                # Some proxies end a watch at once; without a pause this would be a busy loop.
                raise Unavailable(f"the watch of {scope.resource.plural} ended at once")
        except ClusterError as error:
            doubts += 1
            if isinstance(error, Expired) or doubts > FAILURES_BEFORE_LIST:
                version = ""
            if opened is not None and time() - opened > timeouts.longest_retry:
                backoff.reset()  # not in a row: with an old etcd, a watch of what never changes falls silent
            wait = backoff.next(error.retry_after if isinstance(error, Unavailable) else None)
            yield Failed(error, backoff.failures, wait)
            await asyncio.sleep(wait)


def _watch(api: ApiClient, scope: Scope, version: str, timeouts: Timeouts) -> AsyncGenerator[WatchEvent]:
    seconds = int(timeouts.watch * (1 + random.random())) or 1  # noqa: S311 - spreads load, no secret
    return api.watch(
        scope.resource,
        scope.namespace,
        selector=scope.selector,
        fields=scope.fields,
        version=version,
        seconds=seconds,
        inactivity=timeouts.inactivity,
    )


def _change_of(event: WatchEvent) -> Change:
    if event.type == "BOOKMARK":
        return Bookmark()
    return Gone(event.object) if event.type == "DELETED" else Seen(event.object)


# The informer.


_log = logging.getLogger(__name__)


class Informer:
    """Keeps one store equal to the API server.

    Args:
        api: the API server.
        scope: which objects the store holds.
        store: what to keep up to date.
        restarted: called when a list or a watch failed; the regular end of a watch is no failure.
        timeouts: intervals and timeouts.

    Attributes:
        synced: set once the store has been filled for the first time.
        active_at: when, on the loop's clock, it last received or tried something.
    """

    def __init__(
        self,
        api: ApiClient,
        scope: Scope,
        store: Store,
        *,
        restarted: Callable[[], None],
        timeouts: Timeouts,
    ) -> None:
        self._api = api
        self._scope = scope
        self._store = store
        self._restarted = restarted
        self._timeouts = timeouts
        self.synced = asyncio.Event()
        self.active_at: float | None = None

    async def run(self) -> None:
        """Keep the store up to date until cancelled."""
        backoff = Backoff(self._timeouts.first_retry, self._timeouts.longest_retry)
        while True:
            self._touch()
            try:
                async with aclosing(follow(self._api, self._scope, self._timeouts)) as changes:
                    async for change in changes:
                        self._touch()
                        self._take(change)
                        if isinstance(change, Listed):
                            backoff.reset()
            except Exception:  # noqa: BLE001 - an object that can't be read must not end the controller
                _log.exception("the watch of %s failed", self._scope.resource.plural)
                self._restarted()
                await asyncio.sleep(backoff.next())

    def _take(self, change: Change) -> None:
        match change:
            case Seen(manifest):
                self._store.put(manifest)
            case Gone(manifest):
                self._store.remove(manifest)
            case Listed(version, objects):
                self._store.retain(objects, version)
                self.synced.set()
            case Failed(error, _, wait):
                self._restarted()
                _log.info("%s: %s; trying again in %.1f s", self._scope.resource.plural, error, wait)

    def _touch(self) -> None:
        self.active_at = asyncio.get_running_loop().time()


# The cache of TrainJobs: listed once, then fed by kopf's watch and compared with lists.
#
# That watch delivers old and new jobs of one name in any order, and when it begins again it doesn't report
# what has happened before.


GATHER_SECONDS = 0.5
"""Several requests in a row, as while the API server starts, are served by one sweep."""


class JobCache:
    """The jobs of one namespace or of all.

    Args:
        api: the API server.
        namespace: of the jobs; None for every namespace.
        changed: called with each job that changed.
        sweep_seconds: how often the cache is compared with a list without a request.
        gather_seconds: how long a sweep waits for further requests.

    Attributes:
        store: the jobs.
        synced: set once they have been listed.
    """

    def __init__(
        self,
        api: ApiClient,
        namespace: str | None,
        changed: Callable[[JobKey], None],
        *,
        sweep_seconds: float,
        gather_seconds: float = GATHER_SECONDS,
    ) -> None:
        self._api = api
        self._scope = Scope(TRAINJOBS, namespace)
        self._sweep_seconds = sweep_seconds
        self._gather_seconds = gather_seconds
        self._asked = asyncio.Event()
        self._backoff = Backoff()
        self.store = Store(lambda job: JobKey(*namespaced_name(job)), changed)
        self.synced = asyncio.Event()

    def take(self, kind: str, manifest: Manifest) -> None:
        """Apply an event of the watch."""
        if kind == "DELETED":
            self.store.remove(manifest)
        else:
            self.store.put(manifest)

    def ask_for_sweep(self) -> None:
        """Compare the cache with a list soon: it may have missed changes and deletions."""
        self._asked.set()

    async def run(self) -> None:
        """Fill the cache, then remove deleted jobs from it, until cancelled."""
        await self._insist(self._fill)
        while True:
            if await happens_within(self._asked, self._sweep_seconds):
                await asyncio.sleep(self._gather_seconds)
            self._asked.clear()
            await self._insist(self._sweep)

    async def _insist(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except ClusterError as error:
                wait = self._backoff.next(error.retry_after if isinstance(error, Unavailable) else None)
                _log.info("trainjobs: %s; trying again in %.1f s", error, wait)
                await asyncio.sleep(wait)
            else:
                self._backoff.reset()
                return

    async def _fill(self) -> None:
        await compare(self._api, self._scope, self.store, self.store.put)
        self.synced.set()

    async def _sweep(self) -> None:
        """Compare by metadata only; get the few jobs in full that the watch hasn't delivered yet."""
        outdated: set[NamespacedName] = set()

        def look(listed: Manifest) -> None:
            if self._is_outdated(listed):
                outdated.add(namespaced_name(listed))

        await compare(self._api, self._scope, self.store, look, metadata_only=True)
        for namespace, name in outdated:
            with suppress(NotFound):
                self.store.put(await self._api.get(TRAINJOBS, namespace, name))

    def _is_outdated(self, listed: Manifest) -> bool:
        known = self.store.version_of(namespaced_name(listed))
        return known is None or is_newer(version_of(listed), known)
