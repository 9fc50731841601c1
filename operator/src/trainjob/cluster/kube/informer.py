"""Keeps a store equal to what the API server has: list once, then watch, and list anew when in doubt."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import aclosing

from trainjob.cluster.errors import ClusterError, Unavailable
from trainjob.cluster.kube.answers import Expired
from trainjob.cluster.kube.backoff import Backoff
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.listing import Scope, fill
from trainjob.cluster.kube.pace import Pace
from trainjob.cluster.kube.store import Store
from trainjob.cluster.kube.versions import version_of
from trainjob.cluster.kube.watch_events import WatchEvent

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
        pace: Pace,
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
