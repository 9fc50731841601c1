"""Small jobs, first alone and then beside one huge job of their namespace: what they wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import pairwise
from typing import Any

from fleet_figures import WELL, Fate
from fleet_pods import FleetPods
from measuring import Mirror, say, spread, turn_of

from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import CONFIG_MAPS, TRAINJOBS

SMALL = 60
SMALL_RATE = 3.0
SMALL_LIFETIME = 20.0
"""How many small jobs there are, how many a second are created, and how many seconds their pods run."""

HUGE = "huge"
Create = Callable[..., Awaitable[None]]
Ends = Callable[[Mapping[str, Fate]], Awaitable[None]]


class Beside:
    """Creates small jobs at a steady pace, and a huge one.

    Args:
        api: may do everything.
        namespace: of all of them.
        pods: of the namespace.
        jobs: likewise.
        create: creates a job of a name, a fate and a lifetime, with more for its spec.
        ends: waits for the ends of jobs, and holds them against their fates.
        workers: of a small job.
    """

    def __init__(
        self,
        api: ApiClient,
        namespace: str,
        pods: FleetPods,
        jobs: Mirror,
        *,
        create: Create,
        ends: Ends,
        workers: int,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._pods = pods
        self._jobs = jobs
        self._create = create
        self._ends = ends
        self._workers = workers

    async def measure(self, huge: int) -> dict[str, Any]:
        """Return the times of small jobs alone and beside a job of so many workers, and the ratios."""
        say(f"{SMALL} small jobs")
        alone = await self._small("alone")
        say(f"{SMALL} small jobs beside one of {huge} workers")
        begin = time.perf_counter()
        await self._create(HUGE, WELL, None, worker={"replicas": huge})
        last = asyncio.ensure_future(self._pods.has(HUGE, huge + 1))
        beside = await self._small("beside")
        seconds = await last - begin
        await self._running(HUGE)
        uid = self._jobs.objects[HUGE]["metadata"]["uid"]
        await self._api.delete(TRAINJOBS, self._namespace, HUGE, uid=uid)
        await self._pods.until(lambda: not self._pods.of_job(HUGE))
        return {
            "workers": huge,
            "huge_pods_seconds": round(seconds, 1),
            "alone": alone,
            "beside": beside,
            "ratio_of_p50": {what: _ratio(beside[what], alone[what], "p50_ms") for what in alone},
            "ratio_of_p99": {what: _ratio(beside[what], alone[what], "p99_ms") for what in alone},
        }

    async def _small(self, prefix: str) -> dict[str, dict[str, float]]:
        names = {f"{prefix}-{number}": WELL for number in range(SMALL)}
        begin, running = time.perf_counter(), []
        for number, name in enumerate(names):
            await turn_of(number, SMALL_RATE, begin)
            running.append(asyncio.ensure_future(self._one(name)))
        times = await asyncio.gather(*running)
        await self._ends(names)
        calls = (self._pods.agents[name].called_at for name in names if name in self._pods.agents)
        intervals = [later - earlier for called in calls for earlier, later in pairwise(called)]
        raw, pods, status = zip(*times, strict=True)
        return {
            "raw": spread(raw),
            "pods": spread(pods),
            "status": spread(status),
            "interval": spread(intervals),
        }

    async def _one(self, name: str) -> tuple[float, float, float]:
        """Return the seconds of a bare POST, until a job's last pod, and from the start of all to Running."""
        begin = time.perf_counter()
        meta = {"name": name, "namespace": self._namespace}
        await self._api.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
        posted = time.perf_counter()
        await self._create(name, WELL, SMALL_LIFETIME)
        arrived = await self._pods.has(name, self._workers + 1)
        await self._pods.runs(name, self._workers + 1)
        ran = time.perf_counter()
        await self._running(name)
        return posted - begin, arrived - posted, time.perf_counter() - ran

    async def _running(self, name: str) -> None:
        await self._jobs.until(
            lambda: (
                (self._jobs.objects.get(name, {}).get("status") or {}).get("state")
                in ("Running", "Evaluating", "Complete")
            )
        )


def _ratio(one: Mapping[str, float], other: Mapping[str, float], percentile: str) -> float:
    return round(one[percentile] / other[percentile], 2)
