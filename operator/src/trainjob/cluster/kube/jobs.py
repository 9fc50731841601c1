"""The cache of TrainJobs: listed once, then fed by kopf's watch and compared with lists.

That watch delivers old and new jobs of one name in any order, and after it has listed again it doesn't
report which jobs are gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.informer import Backoff, Scope, compare
from trainjob.cluster.kube.resources import TRAINJOBS
from trainjob.cluster.kube.store import NamespacedName, Store, is_newer, namespaced_name, version_of
from trainjob.cluster.protocol import ClusterError, Manifest, NotFound, Unavailable, happens_within
from trainjob.core.names import JobKey

_log = logging.getLogger(__name__)

GATHER_SECONDS = 0.5
"""A new list arrives as one event for each job: one sweep serves them all."""


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

    def take(self, kind: str | None, manifest: Manifest) -> None:
        """Apply an event of the watch; `kind` is None for a listed job."""
        if kind == "DELETED":
            self.store.remove(manifest)
            return
        self.store.put(manifest)
        if kind is None:
            self.ask_for_sweep()

    def ask_for_sweep(self) -> None:
        """Compare the cache with a list soon: it may have missed a deletion."""
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
        known = self.store.get(namespaced_name(listed))
        return known is None or is_newer(version_of(listed), version_of(known))
