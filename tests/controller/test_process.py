from __future__ import annotations

import asyncio
import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.kube.api_server import FakeApiServer
from support.kube.controller import run_controller, write_kubeconfig
from support.kube.kube_cluster import until
from support.world.jobs import build_job
from support.world.kueue import build_queued_job

run_forked = partial(run_controller, forked=True)

LEASE = ("--lease-namespace=trainjob", "--lease-name=lease")
DISCOVERY = {
    "/api",
    "/api/v1",
    "/apis",
    "/apis/trainjob.dev/v1alpha1",
    "/apis/apiextensions.k8s.io/v1",
}
"""What kopf explores at its start: everybody may."""

WATCHED = {
    "/api/v1/persistentvolumeclaims",
    "/api/v1/pods",
    "/api/v1/services",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/apis/trainjob.dev/v1alpha1/trainjobs",
}


async def test_one_life_of_the_process(tmp_path: Path) -> None:
    async with (
        FakeApiServer().serve() as server,
        run_controller(write_kubeconfig(tmp_path, server.url), *LEASE) as controller,
    ):
        await controller.says("At work on the TrainJobs of all namespaces")
        assert (await controller.get("/livez"))[0] == 200
        assert (await controller.get("/readyz"))[0] == 200
        await until(lambda: server.open_watches()["TrainJob"] == 1)

        server.put(build_job())
        await until(lambda: (server.find("TrainJob", "digits") or {}).get("status", {}).get("state"))
        assert server.find("Secret", "trainjob-agent-key", "trainjob")
        metrics = (await controller.get("/metrics"))[1]
        assert "trainjob_leader 1.0" in metrics
        assert 'trainjob_api_requests_total{code="201",resource="pods",verb="create"} 3.0' in metrics
        assert 'trainjob_api_requests_total{code="200",resource="trainjobs",verb="watch"} 1.0' in metrics
        assert 'trainjob_jobs{state="Pending"} 1.0' in metrics

        controller.send(signal.SIGTERM)
        assert await controller.ended() == 0, controller.log
        assert _holder(server) == ""
        assert "Traceback" not in controller.log
        assert "Warning" not in controller.log


@pytest.mark.parametrize(("option", "created"), [("--kueue", 1), ("--no-kueue", 0)])
async def test_a_job_that_names_a_queue_waits(tmp_path: Path, option: str, created: int) -> None:
    async with FakeApiServer().serve() as server:
        server.kueue = ("v1beta2",)
        async with run_forked(write_kubeconfig(tmp_path, server.url), *LEASE, option) as controller:
            server.put(build_queued_job())
            await until(
                lambda: (server.find("TrainJob", "digits") or {}).get("status", {}).get("state") == "Queued"
            )
            assert len(server.all("Workload")) == created
            assert server.all("Pod") == []
            assert (await controller.get("/readyz"))[0] == 200


@pytest.mark.parametrize(("option", "created"), [("--gangs", 1), ("--no-gangs", 0)])
async def test_a_job_whose_scheduler_knows_gangs_has_a_group(
    tmp_path: Path, option: str, created: int
) -> None:
    async with FakeApiServer().serve() as server:
        server.pod_groups = ("scheduling.x-k8s.io/v1alpha1",)
        async with run_forked(write_kubeconfig(tmp_path, server.url), *LEASE, option):
            server.put(build_job(pod={"schedulerName": "gangs"}))
            await until(lambda: len(server.all("Pod")) >= 2)
            assert len(server.all("PodGroup")) == created


async def test_a_restart_writes_nothing(tmp_path: Path) -> None:
    async with FakeApiServer().serve() as server:
        kubeconfig = write_kubeconfig(tmp_path, server.url)
        for name in ("first", "second"):
            server.put(build_job(name=name))
        async with run_forked(kubeconfig, *LEASE) as controller:
            await until(lambda: len(server.all("Pod")) == 6)
            await until(lambda: len(server.all("Event")) == 2)
            controller.send(signal.SIGTERM)
            await controller.ended()
        server.seen.clear()
        async with run_forked(kubeconfig, *LEASE) as controller:
            await controller.says("At work")
            await until(lambda: server.open_watches()["TrainJob"] == 1)
            # A job that comes after those is worked on after them.
            server.put(build_job(name="third"))
            await until(lambda: len(server.all("Pod")) == 9)
    # The agent's program is shared: the third job asks for it, and finds it there.
    others = ("Lease", "third", "create ConfigMap trainjob-agent-")
    written = [write for write in server.writes() if not any(other in write for other in others)]
    assert written == []


@pytest.mark.parametrize("namespace", ["team", None])
async def test_nothing_else_is_asked_for(tmp_path: Path, namespace: str | None) -> None:
    options = ("--no-leader-elect", *([f"--namespace={namespace}"] if namespace else []))
    async with (
        FakeApiServer().serve() as server,
        run_forked(write_kubeconfig(tmp_path, server.url), *options) as controller,
    ):
        await until(lambda: server.open_watches()["TrainJob"] == 1)
        server.put(build_job(namespace="team"))
        server.put({**build_job(namespace="team"), "metadata": {"name": "other", "namespace": "elsewhere"}})
        await until(lambda: len(server.all("Event")) == (1 if namespace else 2))
        everywhere = {path for path in server.paths if "/namespaces/" not in path}
        assert everywhere == DISCOVERY | (set() if namespace else WATCHED)
        places = {path.split("/namespaces/")[1].split("/")[0] for path in set(server.paths) - everywhere}
        assert places == ({"team"} if namespace else {"team", "elsewhere"}) | {"default"}
        ours = [path for path in server.paths if "/namespaces/default/" in path]
        key = "/api/v1/namespaces/default/secrets"
        assert ours == [f"{key}/trainjob-agent-key", key]  # looked for, and made
        assert {seen.verb for seen in server.seen if seen.kind == "TrainJob"} <= {"get", "list", "watch"}
        controller.send(signal.SIGTERM)
        assert await controller.ended() == 0


async def test_the_standby_takes_over_when_the_leader_stops(tmp_path: Path) -> None:
    async with FakeApiServer().serve() as server:
        kubeconfig = write_kubeconfig(tmp_path, server.url)
        async with run_forked(kubeconfig, *LEASE) as leader:
            await leader.says("At work")
            async with run_forked(kubeconfig, *LEASE) as standby:
                await standby.says("waiting for the lease")
                assert (await standby.get("/readyz"))[0] == 200
                assert "trainjob_leader 0.0" in (await standby.get("/metrics"))[1]
                server.put(build_job())
                await until(lambda: len(server.all("Pod")) == 3)
                leader.send(signal.SIGTERM)
                assert await leader.ended() == 0
                await standby.says("At work")
                server.put(build_job(name="later"))
                await until(lambda: len(server.all("Pod")) == 6)
                creations = [write for write in server.writes() if write.startswith("create Pod")]
                assert len(creations) == len(set(creations)) == 6


async def test_the_process_ends_when_another_one_holds_the_lease(tmp_path: Path) -> None:
    async with (
        FakeApiServer().serve() as server,
        run_forked(write_kubeconfig(tmp_path, server.url), *LEASE) as controller,
    ):
        await controller.says("At work")
        lease = server.find("Lease", "lease", "trainjob")
        assert lease is not None
        lease["spec"]["holderIdentity"] = "somebody-else"
        server.put(lease)
        assert await controller.ended() == 3
        assert "somebody-else has taken it over" in controller.log
        assert _holder(server) == "somebody-else"


async def test_an_address_that_is_taken(tmp_path: Path) -> None:
    async with FakeApiServer().serve() as server:
        port = server.url.rpartition(":")[2]
        kubeconfig = write_kubeconfig(tmp_path, server.url)
        async with run_forked(kubeconfig, *LEASE, f"--http-address=127.0.0.1:{port}") as controller:
            assert await controller.ended() == 1
            assert f"Can't serve on 127.0.0.1:{port}" in controller.log
            assert "Traceback" not in controller.log


async def test_the_log_as_json_and_options_from_the_environment(tmp_path: Path) -> None:
    environment = {
        "TRAINJOB_CONTROLLER_LOG_FORMAT": "json",
        "TRAINJOB_CONTROLLER_NAMESPACE": "team",
        "TRAINJOB_CONTROLLER_LEASE_NAME": "lease",
        "POD_NAME": "controller-0",
        "POD_NAMESPACE": "trainjob",
    }
    async with (
        FakeApiServer().serve() as server,
        run_forked(write_kubeconfig(tmp_path, server.url), environment=environment) as controller,
    ):
        await controller.says("At work on the TrainJobs of team")
        assert _holder(server).startswith("controller-0_")
        controller.send(signal.SIGINT)
        assert await controller.ended() == 0
    records: list[dict[str, Any]] = [json.loads(line) for line in controller.lines]
    assert {record["level"] for record in records} == {"info"}
    assert records[-1]["message"] == "Released the lease"


async def test_it_stops_while_the_api_server_is_away(tmp_path: Path) -> None:
    async with FakeApiServer().serve() as server:
        kubeconfig = write_kubeconfig(tmp_path, server.url)
    async with run_forked(kubeconfig, *LEASE) as controller:
        await controller.says("no answer from the API server")
        assert (await controller.get("/readyz"))[0] == 503
        assert (await controller.get("/livez"))[0] == 200
        controller.send(signal.SIGTERM)
        assert await asyncio.wait_for(controller.ended(), 30) == 0
        assert "Traceback" not in controller.log


def _holder(server: FakeApiServer) -> str:
    lease = server.find("Lease", "lease", "trainjob")
    assert lease is not None
    return str(lease["spec"]["holderIdentity"])
