"""Whom the poller asks, when, and what it makes of the answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial, wraps
from typing import Any
from weakref import WeakValueDictionary

import pytest

from support.kube.fake_agents import FakeAgent, build_report, build_witness
from support.kube.kube_cluster import running, until
from support.world.virtual_time import run_skipping_time
from trainjob.api import AGENT_PORT
from trainjob.cluster import JobKey
from trainjob.cluster.agents.poller import CALLS, AgentIntervals, AgentPoller, AgentPolling, pod_address
from trainjob.cluster.agents.wire import AgentRefused, AgentUnreachable
from trainjob.cluster.local.cluster import AGENT_INTERVALS as LOCAL_INTERVALS

KEY = JobKey("default", "digits")
TARGET = {"world": {"worker": 2}, "incarnations": {"worker-0": 1, "worker-1": 1}}
NEVER = 10_000.0

QUICK = AgentIntervals(steady=0.01, hasty=0.01, hasty_for=NEVER, witness=NEVER)
ONCE = AgentIntervals(steady=NEVER, hasty=NEVER, witness=NEVER)
"""One call, and no other one for time alone."""


def build_pod(
    index: int = 0, *, host: str | None = "127.0.0.1", incarnation: int = 1, **state: Any
) -> dict[str, Any]:
    labels = {"role": "worker", "index": str(index), "incarnation": str(incarnation), "live": "true"}
    return {
        "metadata": {
            "name": f"digits-worker-{index}",
            "uid": f"worker-{index}/{incarnation}",
            "labels": {f"trainjob.dev/{name}": value for name, value in labels.items()},
        },
        "status": {
            "podIP": host,
            "containerStatuses": [{"name": "trainer", "state": state or {"running": {}}}],
        },
    }


class World:
    """Jobs and their pods, and the keys whose change was reported."""

    def __init__(self, *, port: int = AGENT_PORT, **polling: Any) -> None:
        self.uids: dict[JobKey, str] = {KEY: "uid-1"}
        self.pods: dict[JobKey, list[dict[str, Any]]] = {KEY: [build_pod()]}
        self.changed: Counter[JobKey] = Counter()
        self.outcomes: Counter[str] = Counter()
        given = {
            "token_of": lambda uid: f"token of {uid}",
            "address_of": partial(pod_address, port=port),
            "on_call": self._count,
            "intervals": QUICK,
            **polling,
        }
        self.poller = AgentPoller(
            self.uids.get,
            lambda key: self.pods.get(key, []),
            lambda key: self.changed.update([key]),
            AgentPolling(**given),
        )

    def _count(self, outcome: str, _seconds: float) -> None:
        self.outcomes[outcome] += 1

    def agent_report(self) -> Mapping[str, Any]:
        return self.poller.agent_report(KEY) or {}


class Calls:
    """Stands in for the network: what each address answers, and who was asked what."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any] | Exception] = {}
        self.made: list[tuple[str, str, Mapping[str, Any]]] = []
        self.open = 0
        self.most_open = 0
        self.held: asyncio.Event | None = None

    async def __call__(
        self, host: str, _port: int, token: str, target: Mapping[str, Any], **_timeout: float
    ) -> Mapping[str, Any]:
        self.made.append((host, token, target))
        self.open += 1
        self.most_open = max(self.open, self.most_open)
        try:
            if self.held is not None:
                await self.held.wait()
            answer = self.answers.get(host, AgentUnreachable("nobody there"))
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            self.open -= 1

    @property
    def hosts(self) -> list[str]:
        return [host for host, _, _ in self.made]


def skipping_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine function that is about time alone: its clock jumps to the next timer."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        run_skipping_time(test(**fixtures))

    return run


@asynccontextmanager
async def polling(world: World) -> AsyncIterator[World]:
    async with running(world.poller.run()):
        await asyncio.sleep(0)
        yield world


class Pod(dict[str, Any]):
    """A pod to which there may be weak references."""


async def test_a_call_that_waits_keeps_no_pods_in_memory() -> None:
    calls = Calls()
    calls.held = asyncio.Event()
    world = World(sync=calls)
    pods = WeakValueDictionary[int, Pod]()

    def read(_key: JobKey) -> list[Pod]:
        found = [Pod(build_pod(index)) for index in range(2)]
        pods.update(enumerate(found))
        return found

    world.poller = AgentPoller(world.uids.get, read, lambda _: None, AgentPolling(sync=calls))
    async with polling(world):
        world.poller.set_target(KEY, TARGET)
        await until(lambda: calls.open == 1)
        assert len(pods) == 0


async def test_a_pod_that_led_is_told_that_it_is_replaced_until_its_successor_runs() -> None:
    calls = Calls()
    calls.answers = {"10.0.0.1": build_report(), "10.0.0.2": build_report()}
    world = World(sync=calls)
    former, successor = build_pod(host="10.0.0.1"), build_pod(host="10.0.0.2", incarnation=2, waiting={})
    del former["metadata"]["labels"]["trainjob.dev/live"]
    world.pods[KEY] = [former, successor]
    async with polling(world):
        world.poller.set_target(KEY, TARGET)
        await until(lambda: len(calls.made) > 1)
        assert set(calls.hosts) == {"10.0.0.1"}
        assert world.agent_report() == {}
        world.pods[KEY] = [former, build_pod(host="10.0.0.2", incarnation=2)]
        await until(lambda: "10.0.0.2" in calls.hosts)
        calls.made.clear()
        await until(lambda: len(calls.made) > 1)
        assert set(calls.hosts) == {"10.0.0.2"}


# -- over the network ------------------------------------------------------------------------------------


async def test_an_agent_receives_the_target_and_its_report_is_kept() -> None:
    agent = FakeAgent("token of uid-1")
    async with agent.serve() as port, polling(World(port=port, intervals=ONCE)) as world:
        world.poller.set_target(KEY, TARGET)
        await until(lambda: world.changed[KEY] == 1)
        report = dict(world.agent_report())
        assert report.pop("age") >= 0
        assert report == {**build_report(), "unreachableSeconds": 0.0}
        assert agent.targets == [TARGET]
        assert world.outcomes == {"answered": 1}


async def test_an_agent_with_another_key_is_no_end_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    agent = FakeAgent("another")
    async with agent.serve() as port, polling(World(port=port)) as world:
        world.poller.set_target(KEY, TARGET)
        await until(lambda: world.outcomes["refused"] >= 4)
        assert world.poller.agent_report(KEY) is None
        warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert len(warnings) == 1
        assert "default/digits: the agent at 127.0.0.1 can't be polled" in warnings[0]
        agent.token = "token of uid-1"  # noqa: S105 - no secret
        await until(lambda: world.agent_report().get("phase") == "running")


def test_a_refusal_after_a_long_silence_is_logged_once_until_an_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The intervals and the message of the local cluster."""
    calls, warned_at = Calls(), list[float]()

    async def poll_for(world: World, seconds: int) -> None:
        for _ in range(10 * seconds):
            await asyncio.sleep(0.1)
            warned_at.extend([asyncio.get_running_loop().time()] * len(caplog.records))
            assert {record.getMessage() for record in caplog.records} <= {"another token"}
            caplog.clear()

    async def main() -> None:
        async with polling(World(sync=calls, intervals=LOCAL_INTERVALS, refusal="%(error)s")) as world:
            for _ in range(2):
                calls.answers["127.0.0.1"] = AgentRefused("another token")
                world.poller.set_target(KEY, TARGET)
                await poll_for(world, 30)
                calls.answers["127.0.0.1"] = build_report()
                await poll_for(world, 1)

    run_skipping_time(main())
    assert len(warned_at) == 2
    assert all(5.0 <= moment <= 6.2 for moment in (warned_at[0], warned_at[1] - 31.0))


async def test_a_report_that_is_larger_than_its_job_is_refused_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    agent = FakeAgent("token of uid-1")
    agent.report = build_report() | {"members": {f"worker-{number}": {} for number in range(50_000)}}
    async with agent.serve() as port, polling(World(port=port)) as world:
        world.poller.set_target(KEY, TARGET)
        await until(lambda: world.outcomes["refused"] >= 4)
        assert world.poller.agent_report(KEY) is None
        (warning,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert "default/digits: the agent at 127.0.0.1 can't be polled" in warning
        assert "at most 67840 are accepted" in warning


async def test_of_a_report_what_is_known_is_kept_of_replicas_that_are() -> None:
    agent, member = FakeAgent("token of uid-1"), build_report()["members"]["worker-0"]
    agent.report = build_report()
    agent.report["members"] |= {"evaluator-0": member, "worker-7": member, "root": [1]}
    agent.report |= {"more": ["of"] * 100}
    async with agent.serve() as port, polling(World(port=port, intervals=ONCE)) as world:
        evaluator = build_pod()
        evaluator["metadata"]["labels"]["trainjob.dev/role"] = "evaluator"
        world.pods[KEY].append(evaluator)
        world.poller.set_target(KEY, TARGET)
        await until(world.agent_report)
        assert set(world.agent_report()["members"]) == {"worker-0", "worker-1", "evaluator-0"}
        assert set(world.agent_report()) == {*build_report(), "age", "unreachableSeconds"}


async def test_a_silent_leader_is_reported_by_another_agent() -> None:
    leader, member = FakeAgent("token of uid-1"), FakeAgent("token of uid-1", build_witness(11.0))
    intervals = replace(QUICK, witness=0.05, timeout=0.05)
    async with leader.serve() as port, member.serve("127.0.0.2", port), polling(
        World(port=port, intervals=intervals)
    ) as world:  # fmt: skip
        world.pods[KEY].append(build_pod(1, host="127.0.0.2"))
        world.poller.set_target(KEY, TARGET)
        await until(lambda: world.agent_report().get("phase") == "running")
        assert not member.targets
        leader.is_mute = True
        await until(lambda: world.agent_report().get("witness") == build_witness(11.0))
        assert world.agent_report()["unreachableSeconds"] > 0
        assert world.agent_report()["phase"] == "running"
        leader.is_mute = False
        await until(lambda: "witness" not in world.agent_report())
        assert world.agent_report()["unreachableSeconds"] == 0


async def test_an_agent_is_served_beside_two_hundred_that_accept_calls_and_never_answer() -> None:
    agent, tarpit = FakeAgent("token of uid-1"), FakeAgent("another")
    tarpit.is_mute = True
    intervals = replace(QUICK, timeout=NEVER)
    async with agent.serve() as port, tarpit.serve("127.0.0.2", port), polling(
        World(port=port, intervals=intervals)
    ) as world:  # fmt: skip
        for key in [JobKey("theirs", f"silent-{number}") for number in range(200)]:
            world.uids[key], world.pods[key] = key.name, [build_pod(host="127.0.0.2")]
            world.poller.set_target(key, TARGET)
        world.poller.set_target(KEY, TARGET)
        await until(lambda: world.outcomes["answered"] >= 20)


# -- when ------------------------------------------------------------------------------------------------


async def test_the_same_order_is_no_reason_to_ask_another_one_is() -> None:
    calls = Calls()
    calls.answers["127.0.0.1"] = build_report()
    async with polling(World(sync=calls, intervals=ONCE)) as world:
        world.poller.set_target(KEY, TARGET)
        await until(lambda: world.changed[KEY] == 1)
        world.poller.set_target(KEY, dict(TARGET))
        other = {**TARGET, "maxRestarts": 7}
        world.poller.set_target(KEY, other)
        await until(lambda: len(calls.made) == 2)
        assert [target for _, _, target in calls.made] == [TARGET, other]


async def test_a_target_that_changes_during_a_call_is_sent_after_it() -> None:
    calls = Calls()
    calls.answers["127.0.0.1"] = build_report()
    calls.held = asyncio.Event()
    async with polling(World(sync=calls, intervals=ONCE)) as world:
        world.poller.set_target(KEY, TARGET)
        await until(lambda: calls.open == 1)
        world.poller.set_target(KEY, {**TARGET, "maxRestarts": 7})
        calls.held.set()
        await until(lambda: len(calls.made) == 2)


@skipping_time
async def test_a_change_of_the_pods_makes_it_ask_more_often() -> None:
    calls = Calls()
    calls.answers["127.0.0.1"] = build_report()
    intervals = AgentIntervals(steady=NEVER, hasty=0.02, hasty_for=0.5)
    async with polling(World(sync=calls, intervals=intervals)) as world:
        world.poller.set_target(KEY, TARGET)
        await asyncio.sleep(10)
        asked = len(calls.made)
        assert asked > 1
        await asyncio.sleep(10)
        assert len(calls.made) == asked
        world.poller.hasten(KEY)
        await asyncio.sleep(10)
        assert len(calls.made) > asked + 1


async def test_pods_that_do_not_run_are_not_asked() -> None:
    calls = Calls()
    async with polling(World(sync=calls)) as world:
        world.pods[KEY] = [build_pod(host=None), build_pod(1)]
        world.poller.set_target(KEY, TARGET)
        marker = JobKey("default", "marker")
        world.uids[marker], world.pods[marker] = "uid-2", [build_pod(host="10.0.0.2")]
        world.poller.set_target(marker, TARGET)
        await until(lambda: len(calls.made) >= 5)
        assert set(calls.hosts) == {"10.0.0.2"}
        world.pods[KEY] = [build_pod(host="10.0.0.1")]
        world.poller.hasten(KEY)
        await until(lambda: "10.0.0.1" in calls.hosts)


@skipping_time
async def test_a_job_whose_pods_wait_for_a_node_is_looked_at_when_they_change_and_seldom_else() -> None:
    calls, looks = Calls(), 0

    def pods_of(key: JobKey) -> list[dict[str, Any]]:
        nonlocal looks
        looks += key == KEY
        return world.pods[key]

    intervals = AgentIntervals(steady=NEVER, hasty=0.01, hasty_for=NEVER)
    world = World(sync=calls, intervals=intervals)
    world.poller._pods_of = pods_of
    world.pods[KEY] = [build_pod(state={"waiting": {}})]
    async with polling(world):
        world.poller.set_target(KEY, TARGET)
        await asyncio.sleep(10)
        assert looks <= 2
        calls.answers["127.0.0.1"] = build_report()
        world.pods[KEY] = [build_pod()]
        world.poller.hasten(KEY)
        await until(lambda: len(calls.made) >= 5)


async def test_an_order_from_before_it_runs_counts() -> None:
    world = World(sync=Calls())
    world.poller.set_target(KEY, TARGET)
    async with polling(world):
        await until(lambda: world.outcomes["unreachable"] >= 1)


# -- whom not --------------------------------------------------------------------------------------------


async def test_without_a_target_no_agent_is_called_and_nothing_is_known() -> None:
    calls = Calls()
    calls.answers["127.0.0.1"] = build_report()
    async with polling(World(sync=calls)) as world:
        world.poller.set_target(KEY, TARGET)
        await until(world.agent_report)
        world.poller.set_target(KEY, None)
        assert world.poller.agent_report(KEY) is None
        world.poller.set_target(KEY, None)  # again is no mistake
        world.poller.hasten(KEY)
        asked = calls.hosts.count("127.0.0.1")
        marker = JobKey("default", "marker")
        world.uids[marker], world.pods[marker] = "uid-2", [build_pod(host="10.0.0.2")]
        world.poller.set_target(marker, TARGET)
        await until(lambda: calls.hosts.count("10.0.0.2") >= 5)
        assert calls.hosts.count("127.0.0.1") == asked


async def test_a_job_that_is_gone_is_forgotten() -> None:
    async with polling(World(sync=Calls())) as world:
        world.poller.set_target(KEY, TARGET)
        await until(lambda: world.outcomes["unreachable"] >= 1)
        del world.uids[KEY]
        await until(lambda: not world.poller._watched)
        world.poller.set_target(KEY, TARGET)
        assert not world.poller._watched


async def test_another_job_of_the_same_name_has_another_token_and_no_past() -> None:
    calls = Calls()
    calls.answers["127.0.0.1"] = build_report()
    async with polling(World(sync=calls)) as world:
        world.poller.set_target(KEY, TARGET)
        await until(world.agent_report)
        world.uids[KEY] = "uid-2"
        world.poller.set_target(KEY, TARGET)
        assert world.poller.agent_report(KEY) is None
        await until(world.agent_report)
        assert {token for _, token, _ in calls.made} == {"token of uid-1", "token of uid-2"}


# -- many ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("namespaces", [1, 2, 3])
async def test_no_more_calls_at_once_than_allowed(namespaces: int) -> None:
    calls, most = Calls(), min(CALLS, namespaces * CALLS // 2)
    calls.held = asyncio.Event()
    async with polling(World(sync=calls)) as world:
        keys = [JobKey(f"space-{number % namespaces}", f"job-{number}") for number in range(3 * CALLS)]
        for key in keys:
            world.uids[key], world.pods[key] = key.name, [build_pod()]
            world.poller.set_target(key, TARGET)
        await until(lambda: calls.open == most)
        calls.held.set()
        await until(lambda: len({token for _, token, _ in calls.made}) == len(keys))
        assert calls.most_open == most


@skipping_time
async def test_no_more_calls_a_second_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, times = asyncio.get_running_loop(), list[float]()
    monkeypatch.setattr("trainjob.cluster.agents.poller.CALLS_A_SECOND", 1000.0)
    intervals = replace(QUICK, hasty=0.0, steady=0.0)
    async with polling(
        World(intervals=intervals, sync=Calls(), on_call=lambda *_: times.append(loop.time()))
    ) as world:
        begun = loop.time()
        world.poller.set_target(KEY, TARGET)
        await until(lambda: len(times) >= 3 * CALLS)
    rest = times[CALLS:]
    assert len(rest) - 1 <= 1000.0 * (rest[-1] - begun)


async def test_what_goes_wrong_with_one_job_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    calls = Calls()
    calls.answers["127.0.0.1"] = ValueError("a defect")
    calls.answers["10.0.0.2"] = build_report()
    async with polling(World(sync=calls)) as world:
        world.poller.set_target(KEY, TARGET)
        await until(lambda: calls.hosts.count("127.0.0.1") >= 2)
        assert "a defect" in caplog.text
        other = JobKey("default", "other")
        world.uids[other], world.pods[other] = "uid-2", [build_pod(host="10.0.0.2")]
        world.poller.set_target(other, TARGET)
        await until(lambda: world.changed[other] == 1)
