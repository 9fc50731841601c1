"""Jobs in queues on a fake API server: what is read and written there, and what a deleted job leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.kube.api_server import FakeApiServer, Kubelet
from support.kube.chart import KUEUE_CLUSTER_RULES, KUEUE_RULES, allowed
from support.kube.fake_agents import GhostAgents
from support.kube.kube_cluster import QUICK, open_kube, running, until
from support.world.kueue import build_queued_job
from trainjob.cluster.kube.cluster import KubeCluster
from trainjob.cluster.kube.transport import Call
from trainjob.controller import Controller
from trainjob.core.names import JobKey
from trainjob.core.settings import Settings

Manifest = dict[str, Any]

KEY = JobKey("default", "digits")


@asynccontextmanager
async def open_controller(server: FakeApiServer, **options: Any) -> AsyncIterator[KubeCluster]:
    agents = GhostAgents(lambda: server.uncopied("Pod"))
    async with open_kube(server.url, polling=agents.polling, use=["kueue"], **options) as cluster:
        await cluster.synced()
        controller = Controller(cluster, workers=4, settings=Settings(integrations=cluster.integrations))
        for key in cluster.job_keys():
            controller.add(key)
        async with running(controller.run()):
            yield cluster


def status_of(server: FakeApiServer, name: str = "digits") -> Manifest:
    status: Manifest = (server.find("TrainJob", name) or {}).get("status", {})
    return status


def admit(server: FakeApiServer) -> None:
    """Do as Kueue, with every Workload."""
    for workload in server.all("Workload"):
        sets = workload["spec"]["podSets"]
        assignments = [{"name": p["name"], "flavors": {"cpu": "gpu"}, "count": p["count"]} for p in sets]
        conditions = [{"type": kind, "status": "True"} for kind in ("QuotaReserved", "Admitted")]
        admission = {"clusterQueue": "all", "podSetAssignments": assignments}
        server.put({**workload, "status": {"conditions": conditions, "admission": admission}})


def start_server(*versions: str) -> FakeApiServer:
    server = FakeApiServer()
    server.kueue = versions
    for version in versions[:1]:
        flavor = {"apiVersion": f"kueue.x-k8s.io/{version}", "kind": "ResourceFlavor"}
        server.put({**flavor, "metadata": {"name": "gpu"}, "spec": {"nodeLabels": {"pool": "gpu"}}})
    return server


@pytest.mark.parametrize(
    ("served", "used"),
    [((), ""), (("v1beta1",), "v1beta1"), (("v1beta1", "v1beta2"), "v1beta2"), (("v2",), "")],
)
async def test_the_newest_known_version_of_kueue_is_used(served: tuple[str, ...], used: str) -> None:
    async with start_server(*served).serve() as server, open_kube(server.url, use=["kueue"]) as cluster:
        await cluster.synced()
        kinds = {kind.api_version for kind in cluster.integrations[0].kinds if kind.of_jobs}
        assert kinds == ({f"kueue.x-k8s.io/{used}"} if used else set())


async def test_a_life_in_a_queue_needs_the_permissions_of_the_table() -> None:
    calls: list[Call] = []
    async with start_server("v1beta2").serve() as server:
        server.pending = {"research": []}
        done: set[str] = set()
        kubelet = Kubelet(server, lambda _pod: 0 if done else None)
        async with open_controller(server, on_call=calls.append), running(kubelet.run()):
            server.put(build_queued_job())
            await until(lambda: status_of(server).get("state") == "Queued")
            await until(lambda: server.all("Workload"))
            await until(lambda: "LocalQueue/pendingworkloads" in {seen.kind for seen in server.seen})
            admit(server)
            await until(lambda: status_of(server).get("state") == "Running")
            assert {pod["spec"]["nodeSelector"]["pool"] for pod in server.all("Pod")} == {"gpu"}
            done.add("all")
            await until(lambda: status_of(server).get("state") == "Complete")
            await until(lambda: not server.all("Workload")[0]["metadata"]["finalizers"])
            (workload,) = server.all("Workload")
            ended = [c for c in workload["status"]["conditions"] if c["type"] == "Finished"]
            assert [c["reason"] for c in ended] == ["Succeeded"]
            server.put(build_queued_job(name="leaver"))
            await until(lambda: len(server.all("Workload")) == 2)
            stored = server.find("TrainJob", "leaver")
            assert stored is not None
            server.put({**stored, "metadata": {**stored["metadata"], "labels": {}}})
            await until(lambda: len(server.all("Workload")) == 1)
    made = {(call.group, call.resource, call.verb) for call in calls}
    granted = set(allowed(KUEUE_RULES + KUEUE_CLUSTER_RULES))
    groups = ("kueue.x-k8s.io", "scheduling.k8s.io", "visibility.kueue.x-k8s.io")
    kueues = {call for call in made if call[0] in groups}
    assert kueues == granted - {("kueue.x-k8s.io", "workloads", "get")}  # after a conflict


@pytest.mark.parametrize("is_away", [False, True])
async def test_the_workload_of_a_deleted_job_is_let_go(is_away: bool) -> None:
    async with start_server("v1beta2").serve() as server:
        async with open_controller(server):
            server.put(build_queued_job())
            await until(lambda: server.all("Workload"))
            if not is_away:
                server.remove("TrainJob", "digits")
                await until(lambda: not server.all("Workload"))
        if is_away:
            server.remove("TrainJob", "digits")
            assert server.all("Workload")[0]["metadata"]["deletionTimestamp"]
            async with open_controller(server):
                await until(lambda: not server.all("Workload"))


async def test_a_job_of_the_same_name_gets_a_workload_of_its_own() -> None:
    async with start_server("v1beta2").serve() as server, open_controller(server):
        server.put(build_queued_job())
        await until(lambda: server.all("Workload"))
        (first,) = server.all("Workload")
        server.remove("TrainJob", "digits")
        server.put(build_queued_job())
        await until(lambda: not server.find("Workload", first["metadata"]["name"]))
        await until(lambda: len(server.all("Workload")) == 1)


async def test_a_workload_that_kueue_has_changed_meanwhile_is_read_again() -> None:
    async with start_server("v1beta2").serve() as server, open_controller(server):
        server.put(build_queued_job(suspend=False))
        await until(lambda: server.all("Workload"))
        await until(lambda: status_of(server).get("state") == "Queued")
        server.losing = True  # the watch doesn't report this change
        server.put({**server.all("Workload")[0], "status": {"conditions": []}})
        server.losing = False
        stored = server.find("TrainJob", "digits")
        assert stored is not None
        server.put({**stored, "spec": {**stored["spec"], "suspend": True}})
        await until(lambda: server.all("Workload")[0]["spec"].get("active") is False)


async def test_positions_are_asked_for_while_jobs_wait() -> None:
    asked = "LocalQueue/pendingworkloads"
    async with start_server("v1beta2").serve() as server:
        server.pending = {}
        async with open_controller(server) as cluster:
            server.put(build_queued_job())
            await until(lambda: server.all("Workload"))
            (workload,) = server.all("Workload")

            async def is_at(position: int | None) -> None:
                while (snapshot := await cluster.observe(KEY)) and snapshot.queue_position != position:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

            for others, position in (([], 1), (["other"], 2)):
                server.pending = {"research": [*others, workload["metadata"]["name"]]}
                await asyncio.wait_for(is_at(position), 120)
            server.pending = {}
            await asyncio.wait_for(is_at(None), 120)
            admit(server)
            await until(lambda: status_of(server).get("state") == "Pending")
            async with asyncio.timeout(120):
                before = -1
                while (count := [seen.kind for seen in server.seen].count(asked)) != before:
                    before = count
                    await asyncio.sleep(5 * QUICK.positions)


@pytest.mark.parametrize("labels", [{}, {"trainjob.dev/job": "digits"}])
async def test_a_workload_that_multikueue_has_made_is_adopted(labels: dict[str, str]) -> None:
    sets = [{"name": "worker", "count": 2}, {"name": "evaluator", "count": 1}]
    made = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": {"podSets": sets}}
    async with start_server("v1beta2").serve() as server, open_controller(server):
        server.put({**made, "metadata": {"name": "made", "namespace": "default", "labels": labels}})
        job = build_queued_job()
        job["metadata"]["annotations"] = {"kueue.x-k8s.io/prebuilt-workload-name": "made"}
        server.put(job)
        await until(lambda: server.all("Workload")[0]["metadata"].get("ownerReferences"))
        admit(server)
        await until(lambda: status_of(server).get("state") == "Pending")
        assert [workload["metadata"]["name"] for workload in server.all("Workload")] == ["made"]
