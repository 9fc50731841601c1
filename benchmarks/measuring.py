"""What the controller's benchmarks share: a namespace, jobs that nobody runs, and what watches tell."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from trainjob.api import API_VERSION, KIND
from trainjob.cluster import ClusterError
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import PODS, Resource
from trainjob.cluster.kube.responses import Expired
from trainjob.core.names import LABEL_JOB

Manifest = dict[str, Any]

NAMESPACES = Resource("", "v1", "namespaces", "Namespace")
NOBODY = "no-such-scheduler"
GUARD_SECONDS = 600.0

TRAINJOB = str(Path(sys.executable).parent / "trainjob")
"""The command, of the environment that this runs in."""


async def turn_of(number: int, rate: float, begin: float) -> None:
    """Wait until it is the turn of this number, from 0, at so many a second since `begin`."""
    await asyncio.sleep(max(0.0, begin + number / rate - time.perf_counter()))


class Arrivals:
    """When each job's last pod was seen by a watch."""

    def __init__(self, pods_per_job: int) -> None:
        self._pods_per_job = pods_per_job
        self._missing: dict[str, int] = {}
        self._complete: dict[str, asyncio.Future[float]] = {}

    async def watch(self, api: ApiClient, namespace: str, version: str) -> None:
        """Look at the namespace's pods from this version on, until cancelled."""
        seconds = int(GUARD_SECONDS)
        while True:  # the API server ends a watch whose reader is too slow for it
            async for event in api.watch(
                PODS, namespace, selector=LABEL_JOB, version=version, seconds=seconds
            ):
                version = event.object["metadata"]["resourceVersion"]
                if event.type == "ADDED":
                    self._count(event.object["metadata"]["labels"][LABEL_JOB])

    def last_pod(self, job: str) -> asyncio.Future[float]:
        """Return what will have the moment of the job's last pod."""
        return self._complete.setdefault(job, asyncio.get_running_loop().create_future())

    def _count(self, job: str) -> None:
        self._missing[job] = self._missing.get(job, self._pods_per_job) - 1
        if self._missing[job] == 0:
            self.last_pod(job).set_result(time.perf_counter())


class Mirror:
    """The objects of one kind in a namespace, as a watch tells; it survives restarts of the API server.

    Attributes:
        objects: by name.
    """

    def __init__(self, api: ApiClient, resource: Resource, namespace: str) -> None:
        self._api = api
        self._resource = resource
        self._namespace = namespace
        self._changed = asyncio.Condition()
        self.objects: dict[str, Manifest] = {}

    def see(self, kind: str, thing: Manifest) -> None:
        """Do something about an event; `kind` is that of the watch."""

    async def run(self) -> None:
        """Work until cancelled."""
        version = ""
        while True:  # the API server ends a watch whose reader is too slow for it
            try:
                version = version or await self._list()
                seconds = int(GUARD_SECONDS)
                async for event in self._api.watch(
                    self._resource, self._namespace, version=version, seconds=seconds
                ):
                    version = event.object["metadata"]["resourceVersion"]
                    if event.type in ("ADDED", "MODIFIED", "DELETED"):
                        await self._take(event.type, event.object)
            except Expired:
                version = ""
            except ClusterError:  # while the API server starts, it may answer with anything
                await asyncio.sleep(0.1)

    async def until(self, holds: Callable[[], object]) -> None:
        """Return once this holds; it is looked at after each event."""
        async with self._changed:
            await self._changed.wait_for(holds)

    async def _list(self) -> str:
        found = await self._api.list(self._resource, self._namespace)
        listed = {thing["metadata"]["name"]: thing for thing in found["items"]}
        for name in self.objects.keys() - listed.keys():
            await self._take("DELETED", self.objects[name])
        for name, thing in listed.items():
            await self._take("MODIFIED" if name in self.objects else "ADDED", thing)
        return str(found["metadata"]["resourceVersion"])

    async def _take(self, kind: str, thing: Manifest) -> None:
        name = thing["metadata"]["name"]
        if kind == "DELETED":
            self.objects.pop(name, None)
        else:
            self.objects[name] = thing
        self.see(kind, thing)
        async with self._changed:
            self._changed.notify_all()


def build_job(namespace: str, name: str, workers: int, **spec: Any) -> dict[str, Any]:
    """Return a job of so many workers and an evaluator, whose pods stay Pending."""
    container = {"name": "trainer", "image": "example.com/none:1", "command": ["python", "train.py"]}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "worker": {"replicas": workers},
            "output": {"claim": {"claimName": "training"}},
            "template": {"spec": {"schedulerName": NOBODY, "containers": [container]}},
            **spec,
        },
    }


@asynccontextmanager
async def a_namespace(api: ApiClient) -> AsyncIterator[str]:
    """Create a namespace and delete it with all that is in it."""
    name = f"trainjob-benchmark-{secrets.token_hex(3)}"
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "namespace": None}}
    made = await api.create(NAMESPACES, manifest)
    try:
        yield name
    finally:
        await api.delete(NAMESPACES, None, name, uid=made["metadata"]["uid"])


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Add those that say which cluster."""
    home = Path.home() / ".kube" / "config"
    parser.add_argument("--kubeconfig", type=Path, default=Path(os.environ.get("KUBECONFIG") or home))
    parser.add_argument("--context")


def controller_command(options: argparse.Namespace, namespace: str) -> list[str]:
    """Return the command of a controller that looks after this namespace."""
    command = [TRAINJOB, "controller", "--kubeconfig", str(options.kubeconfig), "--namespace", namespace]
    command += ["--http-address", "127.0.0.1:0"]
    return [*command, "--context", options.context] if options.context else command


def percentile(seconds: Sequence[float], percent: float) -> float:
    """Return the value, in milliseconds, that so many percent of the values don't exceed."""
    rank = max(1, math.ceil(len(seconds) * percent / 100))
    return round(sorted(seconds)[rank - 1] * 1000, 1)


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Return the usual percentiles in milliseconds."""
    return {"p50_ms": percentile(seconds, 50), "p99_ms": percentile(seconds, 99)}


def say(line: str) -> None:
    """Print progress."""
    print(f"benchmark: {line}", file=sys.stderr, flush=True)
