"""The positions of jobs in their queues, as the queue system shows them.

There is no watch for them, so they are asked for at intervals, and only while jobs wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import Resource
from trainjob.cluster.protocol import ClusterError
from trainjob.core.integration import Integration
from trainjob.core.names import JobKey

LIMIT = 100
"""How many jobs of each queue have a position: each new one is a write of a status."""

_Waiting = tuple[str, str]
"""Queue of a job, and the name of the object that waits there for it."""


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

    def of(self, key: JobKey, waiting: _Waiting | None) -> int | None:
        """Return the job's position in its queue, from 1; None if it is unknown or the job doesn't wait."""
        if waiting is None:
            self._waiting.pop(key, None)
            self._positions.pop(key, None)
            return None
        self._waiting[key] = waiting
        return self._positions.get(key)

    async def run(self, queues: Resource, integration: Integration) -> None:
        """Ask until cancelled.

        Args:
            queues: whose positions are read.
            integration: which knows how.
        """
        while True:
            for namespace, queue in {(key.namespace, queue) for key, (queue, _) in self._waiting.items()}:
                await self._ask(queues, integration, namespace, queue)
            await asyncio.sleep(self._interval)

    async def _ask(self, queues: Resource, integration: Integration, namespace: str, queue: str) -> None:
        query = (("limit", str(LIMIT)),)
        try:
            document = await self._api.get(
                queues, namespace, queue, subresource="pendingworkloads", query=query
            )
            found = integration.read_positions(document)
        except ClusterError:
            found = {}  # no such queue, or nobody shows it: a job needn't know its position
        for key, (named, name) in tuple(self._waiting.items()):
            if (key.namespace, named) == (namespace, queue) and self._is_new(key, found.get(name)):
                self._notify(key)

    def _is_new(self, key: JobKey, position: int | None) -> bool:
        before = self._positions.pop(key, None)
        if position is not None:
            self._positions[key] = position
        return position != before
