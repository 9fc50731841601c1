"""Faults at random between the whole operator, kopf included, and its API server."""

from __future__ import annotations

import asyncio
import signal

import pytest
from support_controller import ControllerServer
from support_havoc import Havoc
from support_jobs import build_job
from support_kube import running, until
from support_kubelet import Kubelet

from trainjob.cluster.kube.access import Access
from trainjob.operator.app import Operator
from trainjob.operator.exits import ExitCode
from trainjob.operator.settings import OperatorSettings

NAMES = [f"job-{number}" for number in range(12)]
DELETED = set(NAMES[:4])
GUARD_SECONDS = 120


@pytest.mark.parametrize("seed", range(3))
async def test_every_job_ends_and_none_is_made_up(seed: int) -> None:
    async with ControllerServer().serve() as server:
        kubelet = Kubelet(server, lambda pod: 0 if int(pod["metadata"]["resourceVersion"]) % 3 else None)
        operator = Operator(
            OperatorSettings(Access(server.url), "me", host="127.0.0.1", port=0, silence_seconds=1.0),
            leave_within=lambda _seconds, _code: None,
        )
        task = asyncio.create_task(operator.run())
        async with running(kubelet.run()):
            await until(lambda: server.open_watches()["TrainJob"] == 1)
            havoc = Havoc(server, seed, faults=150)
            for name in NAMES:
                server.put(build_job(name=name))
                await until(lambda: havoc.left < 150)
            await until(lambda: havoc.left < 100, guard=GUARD_SECONDS)
            for name in DELETED:
                server.remove("TrainJob", name)
            await until(lambda: havoc.left < 50, guard=GUARD_SECONDS)
            havoc.stop()
            await until(
                lambda: _states(server) == dict.fromkeys(set(NAMES) - DELETED, "Complete"),
                guard=GUARD_SECONDS,
            )
            # What was lost on the way is found by comparison.
            await until(
                lambda: {job["metadata"]["name"] for job in operator._cluster.jobs()} == set(NAMES) - DELETED,
                guard=GUARD_SECONDS,
            )
            assert not task.done()
        signal.raise_signal(signal.SIGTERM)
        assert await asyncio.wait_for(task, 30) is ExitCode.STOPPED


def _states(server: ControllerServer) -> dict[str, str | None]:
    return {job["metadata"]["name"]: job.get("status", {}).get("state") for job in server.all("TrainJob")}
