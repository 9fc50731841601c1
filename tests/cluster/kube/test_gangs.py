"""PodGroups on a fake API server: which kinds are found there, and what is read and written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.kube.api_server import FakeApiServer, Kubelet
from support.kube.chart import GANG_RULES, allowed
from support.kube.fake_agents import GhostAgents
from support.kube.kube_cluster import open_kube, running, until
from support.world.jobs import build_job
from trainjob.cluster.kube.transport import Call
from trainjob.controller import Controller
from trainjob.core.integrations.podgroups import COSCHEDULING, VOLCANO
from trainjob.core.settings import Settings


@asynccontextmanager
async def open_controller(server: FakeApiServer, **options: Any) -> AsyncIterator[None]:
    agents = GhostAgents(lambda: server.uncopied("Pod"))
    async with open_kube(server.url, polling=agents.polling, use=["gangs"], **options) as cluster:
        await cluster.synced()
        controller = Controller(cluster, workers=4, settings=Settings(integrations=cluster.integrations))
        for key in cluster.job_keys():
            controller.add(key)
        async with running(controller.run()):
            yield


def start_server(*pod_groups: str) -> FakeApiServer:
    server = FakeApiServer()
    server.pod_groups = pod_groups
    return server


def state(server: FakeApiServer) -> str | None:
    found: str | None = (server.find("TrainJob", "digits") or {}).get("status", {}).get("state")
    return found


@pytest.mark.parametrize(
    ("served", "used"),
    [
        ((), ()),
        ((COSCHEDULING,), (COSCHEDULING,)),
        ((VOLCANO, COSCHEDULING), (COSCHEDULING, VOLCANO)),
        (("scheduling.volcano.sh/v2",), ()),
    ],
)
async def test_known_kinds_of_groups_are_used(served: tuple[str, ...], used: tuple[str, ...]) -> None:
    async with start_server(*served).serve() as server, open_kube(server.url, use=["gangs"]) as cluster:
        await cluster.synced()
        assert tuple(kind.api_version for kind in cluster.integrations[1].kinds) == used


@pytest.mark.parametrize(("scheduler", "kind"), [("gangs", COSCHEDULING), ("volcano", VOLCANO)])
async def test_the_life_of_a_gang_needs_the_permissions_of_the_table(scheduler: str, kind: str) -> None:
    calls: list[Call] = []
    async with start_server(COSCHEDULING, VOLCANO).serve() as server:
        done: set[str] = set()
        kubelet = Kubelet(server, lambda _pod: 0 if done else None)
        async with open_controller(server, on_call=calls.append), running(kubelet.run()):
            server.put(build_job(pod={"schedulerName": scheduler}))
            await until(lambda: state(server) == "Running")
            (group,) = server.all("PodGroup")
            assert (group["apiVersion"], group["spec"]) == (kind, {"minMember": 2})
            await until(lambda: len(server.all("Pod")) == 3)
            stored = server.find("TrainJob", "digits")
            assert stored is not None
            server.put({**stored, "spec": {**stored["spec"], "worker": {"replicas": 3}}})
            await until(lambda: server.all("PodGroup")[0]["spec"] == {"minMember": 3})
            done.add("all")
            await until(lambda: state(server) == "Complete" and not server.all("PodGroup"))
    made = {(call.group, call.resource, call.verb) for call in calls if call.resource == "podgroups"}
    group_name = kind.partition("/")[0]
    granted = set(allowed(GANG_RULES))
    assert made <= granted
    written = {call for call in granted if call[0] == group_name} - {(group_name, "podgroups", "get")}
    assert written <= made  # get comes after a conflict


async def test_a_controller_that_begins_leaves_a_gang_as_it_is() -> None:
    async with start_server(COSCHEDULING).serve() as server:
        async with open_controller(server), running(Kubelet(server, lambda _pod: None).run()):
            server.put(build_job(pod={"schedulerName": "gangs"}))
            await until(lambda: state(server) == "Running" and len(server.all("Pod")) == 3)
        groups, writes = server.all("PodGroup"), len(server.writes())
        async with open_controller(server):
            server.put(build_job(name="other"))
            await until(lambda: len(server.all("Pod")) == 6)
        assert server.all("PodGroup") == groups
        later = {tuple(write.split()[:2]) for write in server.writes()[writes:] if " digits" in write}
        assert later <= {("update", "TrainJob/status")}  # how far the one before has come
