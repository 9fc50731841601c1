"""Workers that take jobs' keys off the queue and reconcile them, until told to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from trainjob.api import TrainJobStatus
from trainjob.cluster import AlreadyExists, Cluster, Conflict, JobKey, NotFound, Unavailable
from trainjob.cluster.waiting import happens_within
from trainjob.controller.queue import WorkQueue
from trainjob.controller.reconciler import Reconciler
from trainjob.core.conditions import is_finished
from trainjob.core.settings import Settings

_log = logging.getLogger(__name__)


def utc_now() -> datetime:
    """Return the time, with zone."""
    return datetime.now(UTC)


class Controller:
    """Keeps every job of a cluster on its way.

    Args:
        cluster: whose jobs to look after.
        clock: returns the time, with zone.
        workers: how many jobs are looked at at once.
        settings: what holds for every job.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        clock: Callable[[], datetime] = utc_now,
        workers: int = 4,
        settings: Settings | None = None,
    ) -> None:
        self._cluster = cluster
        self._reconciler = Reconciler(cluster, clock, settings)
        self._workers = workers
        self._wakeup = asyncio.Event()
        self._queue: WorkQueue[JobKey] = WorkQueue(
            lambda: asyncio.get_running_loop().time(), wake=self._wakeup.set
        )
        cluster.watch(self._queue.add)

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def run_until_finished(self, key: JobKey) -> TrainJobStatus:
        """Work until this job is Complete or Failed, and return its status.

        Raises:
            LookupError: the job is gone.
        """
        self._queue.add(key)
        running = asyncio.ensure_future(self.run())
        try:
            return await self._finished(key, running)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _finished(self, key: JobKey, running: asyncio.Future[None]) -> TrainJobStatus:
        changed = asyncio.Event()
        self._cluster.watch(lambda _: changed.set())
        while True:
            snapshot = await self._cluster.observe(key)
            if snapshot is None:
                raise LookupError(f"the job {key} is gone")
            status = TrainJobStatus.model_validate(snapshot.job.get("status") or {})
            if is_finished(status):
                return status
            waiting = asyncio.ensure_future(changed.wait())
            both: set[asyncio.Future[Any]] = {waiting, running}
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                waiting.cancel()
            if running.done():
                running.result()
            changed.clear()

    async def _work(self) -> None:
        while True:
            key = await self._next()
            try:
                await self._reconcile(key)
            finally:
                self._queue.done(key)

    async def _next(self) -> JobKey:
        while True:
            self._wakeup.clear()
            key = self._queue.take()
            if key is not None:
                if len(self._queue):
                    self._wakeup.set()  # for the other workers
                return key
            await happens_within(self._wakeup, self._queue.next_due())

    async def _reconcile(self, key: JobKey) -> None:
        """Reconcile one job; whatever goes wrong with it concerns no other job."""
        try:
            again = await self._reconciler.reconcile(key)
        except (AlreadyExists, Conflict, NotFound) as error:
            wait = self._queue.retry(key)
            _log.info("%s: what was seen is out of date (%s); looking again in %.1f s", key, error, wait)
        except Unavailable as error:
            wait = error.retry_after or self._queue.retry(key)
            self._queue.add_after(key, wait)
            _log.warning("%s: %s; trying again in %.1f s", key, error, wait)
        except Exception:  # noqa: BLE001 - one job must not stop the others
            wait = self._queue.retry(key)
            _log.exception("%s: could not be reconciled; trying again in %.1f s", key, wait)
        else:
            self._queue.forget(key)
            if again is not None:
                self._queue.add_after(key, again.total_seconds())
