"""Workers that take job keys from the queue and reconcile the jobs, until cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from trainjob.api import TrainJobStatus
from trainjob.cluster import (
    AlreadyExists,
    Cluster,
    ClusterError,
    Conflict,
    JobKey,
    NotFound,
    Refused,
    Unavailable,
)
from trainjob.cluster.protocol import happens_within
from trainjob.controller.queue import WorkQueue
from trainjob.controller.reconciler import OnWritten, Reconciler, ignore
from trainjob.core.conditions import is_finished
from trainjob.core.settings import Settings
from trainjob.core.wording import quoted

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Load:
    """The load of the queue and the workers.

    Attributes:
        waiting: jobs that wait for a worker.
        longest: seconds that the longest pass in progress has taken so far.
        unserved: seconds for which jobs have waited and no worker has taken one.
    """

    waiting: int
    longest: float
    unserved: float


class Controller:
    """Reconciles every job of a cluster.

    Args:
        cluster: the cluster whose jobs to reconcile.
        clock: returns the current time, timezone-aware.
        workers: how many jobs are reconciled concurrently.
        settings: the settings for every job.
        on_reconciled: called after every pass over a job, with the job's key and the seconds it took.
        on_taken: called when a worker takes a job, with the seconds that the job has waited for it.
        on_written: as for `Reconciler`.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        workers: int = 4,
        settings: Settings | None = None,
        on_reconciled: Callable[[JobKey, float], None] = ignore,
        on_taken: Callable[[float], None] = ignore,
        on_written: OnWritten = ignore,
    ) -> None:
        self._cluster = cluster
        self._on_reconciled = on_reconciled
        self._began: dict[JobKey, float] = {}
        self._taken_at = 0.0
        self._reconciler = Reconciler(cluster, clock, settings, on_written)
        self._workers = workers
        self._wakeup = asyncio.Event()
        self._queue: WorkQueue[JobKey] = WorkQueue(
            lambda: asyncio.get_running_loop().time(),
            wake=self._wakeup.set,
            group_of=lambda key: key.namespace,
            share=max(1, 3 * workers // 4),  # leaves workers to other namespaces
            on_taken=on_taken,
        )
        cluster.watch(self._queue.add)

    def add(self, key: JobKey) -> None:
        """Reconcile this job as soon as a worker is free."""
        self._queue.add(key)

    def load(self) -> Load:
        """Return the current load."""
        now = asyncio.get_running_loop().time()
        return Load(
            waiting=len(self._queue),
            longest=max((now - began for began in self._began.values()), default=0.0),
            unserved=min(self._queue.longest_wait(), now - self._taken_at),
        )

    async def run(self) -> None:
        """Reconcile jobs until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    async def run_until_finished(self, key: JobKey) -> TrainJobStatus:
        """Reconcile jobs until this one is Complete or Failed, and return its status.

        Raises:
            LookupError: the job doesn't exist.
        """
        self._queue.add(key)
        changed = asyncio.Event()
        self._cluster.watch(lambda _: changed.set())
        running = asyncio.ensure_future(self.run())
        running.add_done_callback(lambda _: changed.set())
        try:
            while True:
                if running.done():
                    running.result()
                snapshot = await self._cluster.observe(key)
                if snapshot is None:
                    raise LookupError(f"the job {key} is gone")
                status = TrainJobStatus.model_validate(snapshot.job.get("status") or {})
                if is_finished(status):
                    return status
                await changed.wait()
                changed.clear()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _work(self) -> None:
        time = asyncio.get_running_loop().time
        while True:
            self._wakeup.clear()
            key = self._queue.take()
            if key is None:
                await happens_within(self._wakeup, self._queue.next_due())
                continue
            if len(self._queue):
                self._wakeup.set()  # wakes another worker
            began = self._began[key] = self._taken_at = time()
            try:
                await self._reconcile(key)
            finally:
                del self._began[key]
                self._queue.done(key, self._reconciler.rest(key))
            self._on_reconciled(key, time() - began)
            # A pass over a finished job waits for nothing: ten thousand of them, one after the other, would
            # keep the loop from renewing the lease.
            await asyncio.sleep(0)

    async def _reconcile(self, key: JobKey) -> None:
        """Reconcile one job; its failure affects no other job."""
        try:
            again = await self._reconciler.reconcile(key)
        except (AlreadyExists, Conflict, NotFound) as error:
            wait = self._queue.retry(key)
            _log.info("%s: the cached objects are out of date (%s); trying again in %.1f s", key, error, wait)
        except Unavailable as error:
            wait = error.retry_after or self._queue.retry(key)
            self._queue.add_after(key, wait)
            _log.warning("%s: %s; trying again in %.1f s", key, error, wait)
        except Refused as error:
            wait = self._queue.retry(key)
            why = quoted(str(error))
            _log.error("%s: refused by the cluster: %s; trying again in %.1f s", key, why, wait)
            await self._post_refusal(key, f"the cluster refuses a write for this job: {error.message}")
        except Exception:  # noqa: BLE001 - one job must not stop the others
            wait = self._queue.retry(key)
            _log.exception("%s: could not be reconciled; trying again in %.1f s", key, wait)
        else:
            self._queue.forget(key)
            if again == timedelta(0):
                self._queue.put_off(key)
            elif again is not None:
                self._queue.add_after(key, again.total_seconds())

    async def _post_refusal(self, key: JobKey, message: str) -> None:
        """Report a refusal by an event: the refused request may be the status write itself."""
        try:
            snapshot = await self._cluster.observe(key)
            if snapshot is not None:
                await self._cluster.post_event(
                    snapshot.job, type_="Warning", reason="Refused", message=quoted(message)
                )
        except ClusterError as error:
            _log.info("%s: the refusal could not be posted as an event: %s", key, error)
        except Exception:  # noqa: BLE001 - one job must not stop the others
            _log.exception("%s: the refusal could not be posted as an event", key)
