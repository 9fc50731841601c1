"""Agents that never answer keep others' from being asked no longer than half of the places take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest

from support.kube.fake_agents import build_report, build_witness
from support.kube.kube_cluster import running
from support.world.virtual_time import run_skipping_time
from trainjob.cluster import JobKey
from trainjob.cluster.agents.poller import AgentIntervals, AgentPoller, AgentPolling
from trainjob.cluster.agents.wire import AgentUnreachable
from trainjob.core.failure import UNREACHABLE

TARGET = {"world": {"worker": 4}}
ANSWERING = 0.004
"""Seconds that a call takes that is answered."""


def build_pod(host: str, index: int) -> dict[str, Any]:
    labels = {"role": "worker", "index": str(index), "incarnation": "1", "live": "true"}
    return {
        "metadata": {
            "name": f"{host}-{index}",
            "uid": f"{host}-{index}",
            "labels": {f"trainjob.dev/{name}": value for name, value in labels.items()},
        },
        "status": {
            "podIP": f"{host}-{index}",
            "containerStatuses": [{"name": "trainer", "state": {"running": {}}}],
        },
    }


class Network:
    """Addresses that answer at once, and those that take a connection and say nothing.

    Attributes:
        silent: from when on an address says nothing.
        calls: when each address was called.
        heard: when it has answered.
    """

    def __init__(self) -> None:
        self.silent: dict[str, float] = {}
        self.calls: dict[str, list[float]] = {}
        self.heard: dict[str, list[float]] = {}
        self.poller = AgentPoller(
            lambda key: key.name,
            lambda key: [build_pod(key.name, index) for index in range(4)],
            lambda _key: None,
            AgentPolling(sync=self.call, token_of=lambda uid: uid),
        )

    async def call(
        self,
        host: str,
        _port: int,
        _token: str,
        _order: Mapping[str, Any],
        *,
        timeout: float,  # noqa: ASYNC109 - as the real one
        **_limits: int,
    ) -> Mapping[str, Any]:
        loop = asyncio.get_running_loop()
        self.calls.setdefault(host, []).append(loop.time())
        if loop.time() >= self.silent.get(host, float("inf")):
            await asyncio.sleep(timeout)
            raise AgentUnreachable(f"{host} says nothing")
        await asyncio.sleep(ANSWERING)
        self.heard.setdefault(host, []).append(loop.time())
        job, _, index = host.rpartition("-")
        if index == "0":
            return build_report()
        lost = loop.time() - self.silent.get(f"{job}-0", float("inf"))
        return build_witness(lost if lost > 0 else None, f"worker-{index}")

    def longest_gap(self, host: str, after: float) -> float:
        return max(later - earlier for earlier, later in pairwise(self.heard[host]) if earlier >= after)


def play(network: Network, seconds: float, then: Callable[[float], None] = lambda _now: None) -> None:
    """Let the poller run for so long, and look at it ten times a second."""

    async def main() -> None:
        async with running(network.poller.run()):
            for tenth in range(round(10 * seconds)):
                then(tenth / 10)
                await asyncio.sleep(0.1)

    run_skipping_time(main())


@pytest.mark.parametrize(
    ("is_hasty", "silent", "wait"),
    [
        (False, 0.0, 5.0),
        (True, 0.0, 1.0),
        (False, 20.0, 5.0),
        (True, 20.0, 1.0),
        (True, 22.0, 11.0),
        (False, 40.0, 20.0),
        (False, 60.0, 30.0),
        (False, 1e6, 30.0),
    ],
)
def test_how_long_after_one_call_the_next_is_due(is_hasty: bool, silent: float, wait: float) -> None:
    assert AgentIntervals().wait(is_hasty=is_hasty, silent=silent) == wait


def test_who_is_silent_is_asked_as_ever_until_it_is_known_whether_its_node_is_gone() -> None:
    intervals = AgentIntervals()
    assert intervals.patience >= UNREACHABLE.total_seconds() + intervals.steady + intervals.timeout
    assert intervals.patience >= intervals.witness + intervals.steady + intervals.timeout


@pytest.mark.parametrize("namespace", ["theirs", "ours"])
def test_an_honest_job_is_polled_as_often_beside_two_hundred_silent_ones(namespace: str) -> None:
    network, honest = Network(), JobKey(namespace, "honest")
    keys = [JobKey("ours", f"silent{number}") for number in range(200)]
    network.silent = {f"{key.name}-{index}": 0.0 for key in keys for index in range(4)}

    def then(now: float) -> None:
        if now == 0.0:
            for key in [*keys, honest]:
                network.poller.set_target(key, TARGET)
        if now >= 200.0:
            network.poller.hasten(honest)  # its pods change

    play(network, 225.0, then)
    first, longest = network.heard["honest-0"][0], network.longest_gap("honest-0", 201.0)
    print(
        f"honest in {namespace!r}: first heard after {first:.1f} s, then every {longest:.2f} s at the latest"
    )
    assert longest < 1.2


def test_an_agent_with_news_at_each_call_is_soon_asked_at_most_twice_as_often_as_others() -> None:
    """Each time something else has failed, and its order changes."""
    network, key = Network(), JobKey("ours", "job")

    def then(now: float) -> None:
        network.poller.set_target(key, {**TARGET, "attempt": len(network.calls.get("job-0", []))})

    play(network, 200.0, then)
    calls, intervals = network.calls["job-0"], AgentIntervals()
    assert sum(moment < 20.0 for moment in calls) > intervals.hasty_calls
    late = [moment for moment in calls if moment >= 50.0]
    assert len(late) <= 2 * 150.0 / intervals.steady


def test_silent_jobs_are_asked_again_and_again_but_not_as_often() -> None:
    network, key = Network(), JobKey("ours", "job")
    network.silent["job-0"] = 60.0
    play(network, 300.0, lambda now: network.poller.set_target(key, TARGET) if now == 0 else None)
    calls = [moment for moment in network.calls["job-0"] if moment > 60.0]
    waits = [later - earlier for earlier, later in pairwise(calls)]
    assert all(wait < 5.6 for moment, wait in zip(calls, waits, strict=False) if moment < calls[0] + 15)
    assert 29 < waits[-1] <= max(waits) < 34


@pytest.mark.parametrize("others", [0, 200])
def test_a_node_that_is_gone_is_found_out_as_soon_as_ever(others: int) -> None:
    """When the status of a job has what it takes to replace its leading pod, beside others' silent jobs."""
    network, key, dies = Network(), JobKey("theirs", "job"), 100.0
    keys = [JobKey("ours", f"silent{number}") for number in range(others)]
    network.silent = {f"{other.name}-{index}": 0.0 for other in keys for index in range(4)}
    network.silent["job-0"] = dies
    found: list[float] = []

    def then(now: float) -> None:
        if now == 0.0:
            for one in [*keys, key]:
                network.poller.set_target(one, TARGET)
        report = network.poller.agent_report(key) or {}
        lost, longest = (report.get("witness") or {}).get("leaderLostSeconds"), UNREACHABLE.total_seconds()
        if report.get("unreachableSeconds", 0) > longest and (lost or 0) > longest:
            found.append(now - dies)

    play(network, dies + 60.0, then)
    print(f"beside {others} silent jobs the node is given up after {min(found):.1f} s")
    intervals = AgentIntervals()
    usual = intervals.steady + intervals.timeout + intervals.witness + intervals.steady + intervals.timeout
    assert min(found) < usual
