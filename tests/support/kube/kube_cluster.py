"""A KubeCluster on a fake API server, with a watch of TrainJobs that is as forgetful as kopf's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

from support.kube.api_server import FakeApiServer
from trainjob.cluster import ClusterError
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.cluster import KubeCluster
from trainjob.cluster.kube.config import Access
from trainjob.cluster.kube.informer import Timeouts
from trainjob.cluster.kube.resources import TRAINJOBS
from trainjob.cluster.kube.transport import Call

GUARD_SECONDS = 120.0
"""Against hanging only."""

QUICK = Timeouts(watch=60.0, inactivity=30.0, first_retry=0.01, longest_retry=0.05, positions=0.05)
"""Failures are got over at once; what is silent isn't dead."""


async def until(predicate: Callable[[], object], what: str = "", *, guard: float = GUARD_SECONDS) -> None:
    """Let everything run until this holds."""
    try:
        async with asyncio.timeout(guard):
            while not predicate():  # noqa: ASYNC110 - other processes and threads send no event
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"never came true: {what or predicate}") from None


@asynccontextmanager
async def running(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Have these run beside; one that fails fails the test."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result


@asynccontextmanager
async def open_client(url: str, **options: Any) -> AsyncIterator[ApiClient]:
    """Return a client of that server; `access` adds to the access."""
    access = Access(server=url, **options.pop("access", {}))
    async with ApiClient(access, **options) as api:
        yield api


@asynccontextmanager
async def open_kube(
    url: str,
    *,
    feed: bool = True,
    access: dict[str, Any] | None = None,
    on_call: Callable[[Call], None] = lambda _call: None,
    **options: Any,
) -> AsyncIterator[KubeCluster]:
    """Return a running cluster whose caches may not be filled yet; `feed` says whether jobs are watched."""
    async with open_client(url, access=access or {}, on_call=on_call) as api:
        cluster = KubeCluster(api, **{"timeouts": QUICK, **options})
        inactivity = options.get("timeouts", QUICK).inactivity
        jobs = [feed_jobs(api, cluster, options.get("namespace"), inactivity)] if feed else []
        async with running(cluster.run(), cluster.ask_agents(), *jobs):
            yield cluster


async def feed_jobs(api: ApiClient, cluster: KubeCluster, namespace: str | None, inactivity: float) -> None:
    """Watch TrainJobs as kopf does: when the watch begins again, no event says what happened before."""
    while True:
        with suppress(ClusterError):
            listed = await api.list(TRAINJOBS, namespace, selector="none,!none")
            cluster.compare_jobs()
            version = listed["metadata"]["resourceVersion"]
            while True:
                events = api.watch(TRAINJOBS, namespace, version=version, seconds=60, inactivity=inactivity)
                async with aclosing(events) as stream:
                    async for event in stream:
                        version = event.object["metadata"]["resourceVersion"]
                        if event.type != "BOOKMARK":
                            cluster.take_job_event(event.type, event.object)
        await asyncio.sleep(0.01)


def cached(cluster: KubeCluster) -> dict[str, set[tuple[str, str]]]:
    """Return what the caches hold, by kind, as uids and versions."""
    held = {resource.kind: store.items() for resource, store in cluster._stores.items()}
    return {kind: _identify(objects) for kind, objects in {"TrainJob": cluster.jobs(), **held}.items()}


def stored(server: FakeApiServer) -> dict[str, set[tuple[str, str]]]:
    """Return the same of the server."""
    kinds = ("TrainJob", "Pod", "Service", "PersistentVolumeClaim", "NetworkPolicy")
    return {kind: _identify(server.all(kind)) for kind in kinds}


def _identify(objects: Iterable[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(each["metadata"]["uid"], each["metadata"]["resourceVersion"]) for each in objects}
