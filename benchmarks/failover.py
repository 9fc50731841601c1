"""How soon another replica is at work when the leader is killed, and when it is told to stop.

    python benchmarks/failover.py --kubeconfig FILE [--rounds N]

Needs a cluster with the CRD, and no controller that looks after all namespaces: the replicas are processes
here. In each round a job is POSTed at the moment at which the leader is sent the signal; its time ends with
its last pod. Progress goes to stderr, one line of JSON to stdout; docs/benchmarks.md explains it.
"""

from __future__ import annotations

import sys

# This folder comes first on the path, and operator.py in it has the name of a standard library's module.
sys.path.append(sys.path.pop(0))

import argparse
import asyncio
import json
import signal
import time
from contextlib import AsyncExitStack
from typing import Any

from measuring import (
    GUARD_SECONDS,
    Arrivals,
    a_namespace,
    add_cluster_options,
    build_job,
    controller_command,
    say,
)
from replicas import Replica, a_replica

from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import Access, from_kubeconfig
from trainjob.cluster.kube.resources import PODS, TRAINJOBS

WORKERS = 4


class Rounds:
    """A chain of leaders, each followed by the standby of before."""

    def __init__(self, api: ApiClient, namespace: str, command: list[str], stack: AsyncExitStack) -> None:
        self._api = api
        self._namespace = namespace
        self._command = command
        self._stack = stack
        self._leaders: list[Replica] = []
        self._jobs = 0
        self.arrivals = Arrivals(WORKERS + 1)

    async def begin(self) -> None:
        """Have a leader that has worked."""
        await self._start("At work")
        await self._next_job()

    async def measure(self, number: signal.Signals) -> float:
        """Return the seconds from the signal to the leader until a new job has all of its pods."""
        leader = self._leaders[-1]
        await self._start("waiting for the lease")
        begin = time.perf_counter()
        leader.send(number)
        return await self._next_job() - begin

    async def _start(self, until: str) -> None:
        replica = await self._stack.enter_async_context(a_replica(self._command))
        await replica.says(until)
        self._leaders.append(replica)

    async def _next_job(self) -> float:
        self._jobs += 1
        name = f"job-{self._jobs}"
        await self._api.create(TRAINJOBS, build_job(self._namespace, name, WORKERS))
        return await self.arrivals.last_pod(name)


async def run_all(rounds: Rounds, count: int) -> dict[str, Any]:
    """Return what is measured."""
    await rounds.begin()
    seconds: dict[signal.Signals, list[float]] = {signal.SIGKILL: [], signal.SIGTERM: []}
    for number in range(count):
        for sent, measured in seconds.items():
            say(f"round {number + 1} of {count}: {sent.name}")
            measured.append(round(await rounds.measure(sent), 2))
    return {
        "benchmark": "failover",
        **{f"{sent.name.lower()}_seconds": all_ for sent, all_ in seconds.items()},
    }


async def run(options: argparse.Namespace, access: Access) -> dict[str, Any]:
    """Return what is measured; the namespace and the processes are gone afterwards."""
    async with ApiClient(access) as api, a_namespace(api) as namespace, AsyncExitStack() as stack:
        command = [*controller_command(options, namespace), "--lease-namespace", namespace]
        rounds = Rounds(api, namespace, command, stack)
        version = (await api.list(PODS, namespace))["metadata"]["resourceVersion"]
        watch = asyncio.ensure_future(rounds.arrivals.watch(api, namespace, version))
        try:
            return await asyncio.wait_for(run_all(rounds, options.rounds), GUARD_SECONDS)
        finally:
            watch.cancel()


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_cluster_options(parser)
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    return parser.parse_args()


if __name__ == "__main__":
    chosen = read_options()
    print(json.dumps(asyncio.run(run(chosen, from_kubeconfig(chosen.kubeconfig, chosen.context)))))
