"""Keeps kopf's watch of TrainJobs running: whatever ends or silences it, it is started again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

import kopf

from trainjob.cluster import Manifest
from trainjob.cluster.kube.access import Access
from trainjob.cluster.kube.backoff import Backoff
from trainjob.cluster.kube.calls import Call
from trainjob.cluster.kube.pace import Pace
from trainjob.operator.handlers import SERVER_SECONDS, Take, build_registry
from trainjob.operator.login import Login

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
        pace: Pace,
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
