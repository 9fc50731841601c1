"""A job that creates a thousand pods leaves connections to the API server for others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from support.kube.kube_cluster import open_client, running, until
from trainjob.cluster.kube.cluster import NAMESPACE_WRITES, KubeCluster
from trainjob.core.names import job_labels

MANY = 100


def build_pod(namespace: str, job: str, number: int = 0) -> dict[str, Any]:
    labels = {"trainjob.dev/role": "worker", "trainjob.dev/index": str(number), **job_labels(job)}
    metadata = {"namespace": namespace, "name": f"{job}-{number}", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


class SlowServer:
    """Takes its time over the pods of one job.

    Attributes:
        begun: names of the pods whose creation has reached it.
        may_end: one creation of that job ends for each.
    """

    def __init__(self, job: str) -> None:
        self.begun: list[str] = []
        self.may_end = asyncio.Semaphore(0)
        self._job = job

    async def _create(self, request: web.Request) -> web.Response:
        pod = await request.json()
        self.begun.append(pod["metadata"]["name"])
        if pod["metadata"]["labels"]["trainjob.dev/job"] == self._job:
            await self.may_end.acquire()
        pod["metadata"] |= {"uid": pod["metadata"]["name"], "resourceVersion": str(len(self.begun))}
        return web.json_response(pod, status=201)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[KubeCluster]:
        """Give a cluster on this server."""
        application = web.Application()
        application.router.add_post("/api/v1/namespaces/{namespace}/pods", self._create)
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        try:
            async with open_client(f"http://{host}:{port}") as api:
                yield KubeCluster(api)
        finally:
            await runner.cleanup()


async def test_another_namespaces_pod_is_created_at_once_beside_a_hundred_that_hang() -> None:
    server = SlowServer("huge")
    async with server.serve() as cluster:
        huge = [cluster.create(build_pod("theirs", "huge", number)) for number in range(MANY)]
        async with running(*huge):
            await until(lambda: len(server.begun) == NAMESPACE_WRITES)
            async with asyncio.timeout(10):
                await cluster.create(build_pod("ours", "small"))
            print(f"created beside {len(server.begun) - 1} of theirs that hang")


async def test_another_job_of_the_namespace_is_next() -> None:
    server = SlowServer("huge")
    async with server.serve() as cluster:
        huge = [cluster.create(build_pod("ours", "huge", number)) for number in range(MANY)]
        async with running(*huge):
            await until(lambda: len(server.begun) == NAMESPACE_WRITES)
            async with running(cluster.create(build_pod("ours", "small"))):
                server.may_end.release()
                server.may_end.release()
                await until(lambda: "small-0" in server.begun, guard=10)
            print(f"created after {len(server.begun) - 1} of {MANY} of the other job")
