"""Keeps a store equal to what the API server has: list once, then watch, and list again when in doubt."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from trainjob.cluster.kube.client import ApiClient, WatchEvent
from trainjob.cluster.kube.store import NamespacedName, Store, place_of, version_of
from trainjob.cluster.kube.transport import PODS, TRAINJOBS, Expired, Resource
from trainjob.cluster.protocol import ClusterError, Manifest, Unavailable

# Intervals and timeouts of watches and polls.


@dataclass(frozen=True)
class Timeouts:
    """How a cache is kept up to date, in seconds.

    Attributes:
        watch: how long one watch goes on before it is opened anew; a random part comes on top.
        inactivity: how long a watch may be silent; the API server sends a bookmark about each minute.
        resync: how old a list may get before another one is compared with the store, for deletions lost.
        sweep: how often the jobs, whose watch is kopf's, are held against a list anyway.
        collect: between two looks for agents' programs that nobody needs; what is found twice goes. Longer
            than any pass over a job, which may be about to create pods with such a program.
        first_retry: the wait after a failure; see `Backoff`.
        longest_retry: the limit of the waits after failures in a row.
    """

    watch: float = 300.0
    inactivity: float = 70.0
    resync: float = 1800.0
    sweep: float = 300.0
    collect: float = 900.0
    first_retry: float = 0.2
    longest_retry: float = 30.0


@dataclass(frozen=True)
class AgentPace:
    """How often the jobs' agents are asked, in seconds.

    Attributes:
        steady: between two calls for one job; a random part, up to a tenth, comes on top.
        hasty: the same for a while after something changed.
        hasty_for: how long that while is.
        hasty_calls: how many calls for one job may come before the steady pace has them; each steady interval
            earns another. An agent that says something new whenever it is asked, so that its order changes
            at every look, is asked twice as often as others in the long run.
        witness: how long a leading agent may be silent before others are asked about it.
        timeout: of one call.
        patience: how long a job's agent may be silent and still be asked as often as any. It is longer than
            what it takes to find out that a node is gone (`UNREACHABLE`, as others see it, too).
        longest: between two calls for a job that has been silent for long.
    """

    steady: float = 5.0
    hasty: float = 1.0
    hasty_for: float = 30.0
    hasty_calls: int = 30
    witness: float = 10.0
    timeout: float = 3.0
    patience: float = 20.0
    longest: float = 30.0

    def wait(self, *, is_hasty: bool, silent: float) -> float:
        """Return the time from one call for a job to the next.

        Args:
            is_hasty: something has changed a short while ago.
            silent: for how long its agent hasn't answered, since then.
        """
        usual = self.hasty if is_hasty else self.steady
        return usual if silent <= self.patience else max(usual, min(silent / 2, self.longest))


# How long to wait after failures in a row, so that many clients don't come back at once.


FIRST_SECONDS = 0.2
LONGEST_SECONDS = 30.0


class Backoff:
    """Doubles with each failure, up to a limit; each wait is a random part, at least half, of that.

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
        """How many there have been in a row."""
        return self._failures

    def next(self, asked: float | None = None) -> float:
        """Count a failure and return the seconds to wait, no fewer than the server asked for."""
        limit = min(self._longest, self._first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return max(limit * (0.5 + self._rand() / 2), asked or 0.0)

    def reset(self) -> None:
        """Forget the failures: something went well."""
        self._failures = 0


# Whole lists, a page at a time.


PAGE = 500
JOBS_A_PAGE = 10
PODS_A_PAGE = 100
"""A page is in memory whole: its text, and its objects before they are cut down to what is kept. A job has up
to 1.5 MB, as much as etcd stores; a pod of a large job some 100 kB.
"""


_PAGES = {TRAINJOBS: JOBS_A_PAGE, PODS: PODS_A_PAGE}


@dataclass(frozen=True)
class Scope:
    """Which objects are listed and watched.

    Attributes:
        resource: their kind.
        namespace: where they are; None is everywhere.
        selector: by their labels; empty takes all.
    """

    resource: Resource
    namespace: str | None = None
    selector: str = ""


async def fill(api: ApiClient, scope: Scope, store: Store) -> str:
    """Make a store equal to what the API server has, and return the list's resourceVersion.

    Raises:
        ClusterError: the list could not be had; the store may hold some of it.
    """
    return await compare(api, scope, store, store.put)


async def compare(
    api: ApiClient,
    scope: Scope,
    store: Store,
    take: Callable[[Manifest], object],
    *,
    metadata_only: bool = False,
) -> str:
    """List everything, drop from the store what is gone, and return the list's resourceVersion.

    Args:
        api: the API server.
        scope: what is listed.
        store: what is compared with it.
        take: given each object as its page comes, so that only one page is held in memory.
        metadata_only: whether the objects come without spec and status.

    Raises:
        ClusterError: the list could not be had.
    """
    try:
        limit = PAGE if metadata_only else _PAGES.get(scope.resource, PAGE)
        seen, version = await walk(api, scope, take, limit=limit, metadata_only=metadata_only)
    except Expired:
        # The list was compacted away between two pages; all at once it can't be.
        seen, version = await walk(api, scope, take, limit=None, metadata_only=metadata_only)
    store.retain(seen, version)
    return version


async def walk(
    api: ApiClient,
    scope: Scope,
    take: Callable[[Manifest], object],
    *,
    limit: int | None,
    metadata_only: bool,
) -> tuple[list[tuple[NamespacedName, str]], str]:
    """Give every object to `take`, and return their places and uids, and the list's resourceVersion.

    Raises:
        Expired: the list was compacted away between two pages.
        ClusterError: it could not be had.
    """
    seen: list[tuple[NamespacedName, str]] = []
    continuation = ""
    while True:
        page = await api.list(
            scope.resource,
            scope.namespace,
            selector=scope.selector,
            limit=limit,
            continuation=continuation,
            metadata_only=metadata_only,
        )
        for item in page.get("items") or ():
            # Lists of Kubernetes' own kinds leave out on each item what the list says once.
            item.setdefault("apiVersion", scope.resource.api_version)
            item.setdefault("kind", scope.resource.kind)
            seen.append((place_of(item), item["metadata"]["uid"]))
            take(item)
        continuation = (page.get("metadata") or {}).get("continue") or ""
        if not continuation:
            return seen, version_of(page)


# Keeps a store equal to what the API server has: list once, then watch, and list anew when in doubt.


_log = logging.getLogger(__name__)

FAILURES_BEFORE_LIST = 3
"""In a row: the API server may be unable to go on from the version it is asked for, and not say so."""


class Informer:
    """Looks after one store.

    Args:
        api: the API server.
        scope: which objects the store holds.
        store: what to keep up to date.
        restarted: called when a watch ended in any other way than by its time running out.
        pace: how long to wait for what.

    Attributes:
        synced: set once the store has been filled for the first time.
        active_at: when, on the loop's clock, it last heard or tried something.
    """

    def __init__(
        self,
        api: ApiClient,
        scope: Scope,
        store: Store,
        *,
        restarted: Callable[[], None],
        pace: Timeouts,
    ) -> None:
        self._api = api
        self._scope = scope
        self._store = store
        self._restarted = restarted
        self._pace = pace
        self._backoff = Backoff(pace.first_retry, pace.longest_retry)
        self._version = ""  # of the list or event that was seen last; empty: list first
        self._listed_at = 0.0
        self.synced = asyncio.Event()
        self.active_at: float | None = None

    async def run(self) -> None:
        """Keep the store up to date until cancelled."""
        while True:
            try:
                await self._step()
            except Expired as error:
                self._version = ""
                await self._pause(error)
            except ClusterError as error:
                if self._backoff.failures >= FAILURES_BEFORE_LIST:
                    self._version = ""
                await self._pause(error)
            except Exception:  # noqa: BLE001 - an object that can't be read must not end the controller
                _log.exception("the watch of %s failed", self._scope.resource.plural)
                self._version = ""
                await self._pause(None)

    async def _step(self) -> None:
        self._touch()
        if not self._version or self._now() - self._listed_at > self._pace.resync:
            listed_at = self._now()
            self._version = await fill(self._api, self._scope, self._store)
            self._listed_at = listed_at
            self._touch()
            self.synced.set()
        await self._watch()

    async def _watch(self) -> None:
        began, heard = self._now(), False
        seconds = int(self._pace.watch * (1 + random.random())) or 1  # noqa: S311 - spreads load, no secret
        async with aclosing(
            self._api.watch(
                self._scope.resource,
                self._scope.namespace,
                selector=self._scope.selector,
                version=self._version,
                seconds=seconds,
                inactivity=self._pace.inactivity,
            )
        ) as events:
            async for event in events:
                heard = True
                self._touch()
                self._backoff.reset()
                self._take(event)
        if not heard and self._now() - began < min(1.0, self._pace.watch):
            raise Unavailable(f"the watch of {self._scope.resource.plural} ended at once")

    def _take(self, event: WatchEvent) -> None:
        if event.type == "DELETED":
            self._store.remove(event.object)
        elif event.type != "BOOKMARK":
            self._store.put(event.object)
        self._version = version_of(event.object) or self._version

    async def _pause(self, error: ClusterError | None) -> None:
        self._touch()
        self._restarted()
        wait = self._backoff.next(error.retry_after if isinstance(error, Unavailable) else None)
        if error is not None:
            _log.info("%s: %s; trying again in %.1f s", self._scope.resource.plural, error, wait)
        await asyncio.sleep(wait)

    def _touch(self) -> None:
        self.active_at = self._now()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
