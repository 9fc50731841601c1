"""The positions of jobs in their queues, as Kueue's visibility API has them.

There is no watch for them, so they are asked for at intervals, and only while jobs wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.discovery import local_queues
from trainjob.cluster.protocol import ClusterError, Manifest
from trainjob.core.names import JobKey
from trainjob.core.workload import read_positions, waits_in_queue

LIMIT = 100
"""How many jobs of each queue have a position: each new one is a write of a status."""

_Waiting = tuple[str, str]
"""Queue and Workload of a job."""


class QueuePositions:
    """Positions of the jobs that `of` was asked about, until it is told that they don't wait.

    Args:
        api: the API server.
        notify: called with the key of each job whose position has changed.
        interval: seconds between two requests for a queue.
    """

    def __init__(self, api: ApiClient, notify: Callable[[JobKey], None], interval: float) -> None:
        self._api = api
        self._notify = notify
        self._interval = interval
        self._waiting: dict[JobKey, _Waiting] = {}
        self._positions: dict[JobKey, int] = {}

    def of(self, key: JobKey, workload: Manifest | None) -> int | None:
        """Return the job's position in its queue, from 1; None if it is unknown or the job doesn't wait."""
        if workload is None or not waits_in_queue(workload):
            self._waiting.pop(key, None)
            self._positions.pop(key, None)
            return None
        self._waiting[key] = workload["spec"].get("queueName", ""), workload["metadata"]["name"]
        return self._positions.get(key)

    async def run(self, version: str) -> None:
        """Ask until cancelled.

        Args:
            version: of the visibility API.
        """
        while True:
            for namespace, queue in {(key.namespace, queue) for key, (queue, _) in self._waiting.items()}:
                await self._ask(version, namespace, queue)
            await asyncio.sleep(self._interval)

    async def _ask(self, version: str, namespace: str, queue: str) -> None:
        try:
            found = read_positions(
                await self._api.get(
                    local_queues(version),
                    namespace,
                    queue,
                    subresource="pendingworkloads",
                    query=(("limit", str(LIMIT)),),
                )
            )
        except ClusterError:
            found = {}  # no such queue, or Kueue is away: a job needn't know its position
        for key, (named, workload) in tuple(self._waiting.items()):
            if (key.namespace, named) == (namespace, queue) and self._is_new(key, found.get(workload)):
                self._notify(key)

    def _is_new(self, key: JobKey, position: int | None) -> bool:
        before = self._positions.pop(key, None)
        if position is not None:
            self._positions[key] = position
        return position != before
