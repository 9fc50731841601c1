"""Faults at random between the whole operator, kopf included, and its API server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import settings

from support.kube.api_server import FakeApiServer, Havoc, Kubelet
from support.kube.kube_cluster import cached, running, stored, until
from support.world.jobs import build_job
from trainjob.api import parse
from trainjob.cluster.kube.config import Access
from trainjob.cluster.kube.informer import Timeouts
from trainjob.controller.operator import Operator
from trainjob.controller.process_settings import ExitCode, OperatorSettings
from trainjob.core.manifests import build_objects

NAMES = [f"job-{number}" for number in range(12)]
DELETED = set(NAMES[:4])
FAULTS = 120
GUARD_SECONDS = 120
TIMEOUTS = Timeouts(watch=2.0, inactivity=0.3, resync=0.5, sweep=0.3, first_retry=0.01, longest_retry=0.1)


@pytest.mark.parametrize("seed", range(max(2, settings().max_examples // 50)))
async def test_every_job_ends_and_none_is_made_up(seed: int) -> None:
    async with FakeApiServer().serve() as server, _operator(server) as operator:
        havoc = Havoc(server, seed, faults=FAULTS)
        kubelet = Kubelet(server, lambda pod: 0 if havoc.left <= _end_of(pod) else None)
        async with running(kubelet.run()):
            for name in NAMES:
                server.put(build_job(name=name))
                await until(lambda: havoc.left < FAULTS)
            await until(lambda: havoc.left < FAULTS * 2 / 3, guard=GUARD_SECONDS)
            for name in DELETED:
                server.remove("TrainJob", name)
            await until(lambda: havoc.left < FAULTS / 4, guard=GUARD_SECONDS)
            havoc.stop()
            left = dict.fromkeys(set(NAMES) - DELETED, "Complete")
            await until(lambda: _states(server) == left, guard=GUARD_SECONDS)
            await until(lambda: server.open_watches()["TrainJob"] == 1, guard=GUARD_SECONDS)
            # What was lost on the way is found by comparison.
            await until(lambda: cached(operator._cluster) == stored(server), guard=GUARD_SECONDS)
            jobs = server.all("TrainJob")
            # A pod that was on its way when its job was deleted is garbage, which the server collects.
            await until(lambda: _names(server.all("Pod")) == set().union(*map(_pods, jobs)))
        assert not [job for job in jobs if job["status"].get("restarts", {}).get("counted")]


@asynccontextmanager
async def _operator(server: FakeApiServer) -> AsyncIterator[Operator]:
    """Run the operator; it must be there until it is asked to stop."""
    operator = Operator(
        OperatorSettings(Access(server.url), "me", "trainjob", host="127.0.0.1", port=0, timeouts=TIMEOUTS),
        leave_within=lambda _seconds, _code: None,
    )
    task = asyncio.create_task(operator.run())
    try:
        await until(lambda: server.open_watches()["TrainJob"] == 1)
        yield operator
        assert not task.done()
        signal.raise_signal(signal.SIGTERM)
        assert await asyncio.wait_for(task, 30) is ExitCode.STOPPED
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _end_of(pod: dict[str, Any]) -> float:
    """Return how many faults are still to come when the pod ends: the jobs go one after the other."""
    number = int(pod["metadata"]["labels"]["trainjob.dev/job"].removeprefix("job-"))
    return FAULTS * number / len(NAMES)


def _states(server: FakeApiServer) -> dict[str, str | None]:
    return {job["metadata"]["name"]: job.get("status", {}).get("state") for job in server.all("TrainJob")}


def _names(objects: list[dict[str, Any]]) -> set[str]:
    return {stored["metadata"]["name"] for stored in objects}


def _pods(job: dict[str, Any]) -> set[str]:
    """Return the pods of the first attempt."""
    return _names([made for made in build_objects(parse(job)) if made["kind"] == "Pod"])
