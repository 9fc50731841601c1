from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from support.kube.api_server import FakeApiServer, Seen
from support.kube.kube_cluster import until
from support.world.jobs import build_job
from trainjob.cluster.agents.poller import AgentPoller
from trainjob.cluster.kube.cluster import KubeCluster
from trainjob.cluster.kube.config import Access
from trainjob.controller import Controller
from trainjob.controller.election import Election, Elector
from trainjob.controller.operator import GRACE_SECONDS, LOST_GRACE_SECONDS, Operator
from trainjob.controller.process_settings import ExitCode, OperatorSettings
from trainjob.core.settings import Settings

ELECTION = Election("trainjob", "lease")
QUICK = Election("trainjob", "lease", lease_seconds=2, renew_deadline=1.0, retry_seconds=0.05)


class Running:
    """An operator in this process."""

    def __init__(self, server: FakeApiServer, **settings: Any) -> None:
        self.graces: list[tuple[float, ExitCode]] = []
        given: dict[str, Any] = {"election": ELECTION, "host": "127.0.0.1", "port": 0, **settings}
        operator = Operator(
            OperatorSettings(
                Access(server.url), identity="me", key_namespace="trainjob", key_name="key", **given
            ),
            leave_within=lambda seconds, code: self.graces.append((seconds, code)),
        )
        self.task = asyncio.create_task(operator.run())

    async def end(self) -> ExitCode:
        async with asyncio.timeout(30):
            return await self.task


@asynccontextmanager
async def run_operator(**settings: Any) -> AsyncIterator[tuple[FakeApiServer, Running]]:
    async with FakeApiServer().serve() as server:
        operator = Running(server, **settings)
        try:
            yield server, operator
        finally:
            operator.task.cancel()
            await asyncio.gather(operator.task, return_exceptions=True)


async def test_when_asked_to_stop_the_lease_is_its_last_write() -> None:
    async with run_operator() as (server, operator):
        await until(lambda: server.open_watches()["TrainJob"] == 1)

        def stop_at_the_first_pod(seen: Seen) -> None:
            if seen.kind == "Pod":
                server.fault_after = lambda _seen: None
                signal.raise_signal(signal.SIGTERM)

        server.fault_after = stop_at_the_first_pod
        for number in range(30):
            server.put(build_job(name=f"job-{number}"))
        assert await operator.end() is ExitCode.STOPPED
        assert operator.graces == [(GRACE_SECONDS, ExitCode.STOPPED)]
        # What was done is still reported; nothing more is done.
        assert [write for write in server.writes() if " Event " not in write][-1] == "update Lease lease"
        assert _holder(server) == ""
        assert len(server.all("Pod")) < 90  # it was stopped in the midst of it


async def test_agents_get_no_target_after_the_lease_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    run, release = AgentPoller.run, Elector.release

    async def run_and_tell(self: AgentPoller) -> None:
        calls.append("asks")
        try:
            await run(self)
        finally:
            calls.append("asks no more")

    async def release_and_tell(self: Elector) -> None:
        calls.append("gives the lease back")
        await release(self)

    monkeypatch.setattr(AgentPoller, "run", run_and_tell)
    monkeypatch.setattr(Elector, "release", release_and_tell)
    async with run_operator() as (server, operator):
        await until(lambda: _holder(server) == "me" and server.open_watches()["TrainJob"] == 1)
        await until(lambda: bool(calls))
        signal.raise_signal(signal.SIGTERM)
        assert await operator.end() is ExitCode.STOPPED
    assert calls == ["asks", "asks no more", "gives the lease back"]


async def test_targets_have_the_number_of_lease_transitions(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []

    class Told(Controller):
        def __init__(self, *given: Any, settings: Settings, **more: Any) -> None:
            told.append(settings.lease)
            super().__init__(*given, settings=settings, **more)

    monkeypatch.setattr("trainjob.controller.operator.Controller", Told)
    async with FakeApiServer().serve() as server:
        server.put(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "lease", "namespace": "trainjob"},
                "spec": {"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 6},
            }
        )
        for election in (ELECTION, None):
            operator = Running(server, election=election)
            before = len(told)
            await until(lambda before=before: len(told) > before)
            operator.task.cancel()
            await asyncio.gather(operator.task, return_exceptions=True)
    assert told == [7, 0]


async def test_a_leader_that_loses_the_api_server_ends() -> None:
    async with run_operator(election=QUICK) as (server, operator):
        await until(lambda: server.open_watches()["TrainJob"] == 1)
        server.fault = lambda _seen: ConnectionError("away")
        server.end_watches()
        assert await operator.end() is ExitCode.LEASE_LOST
        assert operator.graces == [(LOST_GRACE_SECONDS, ExitCode.LEASE_LOST)]
        assert _holder(server) == "me"


async def test_a_standby_outlives_the_api_servers_absence() -> None:
    async with run_operator() as (server, operator):
        server.put(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "lease", "namespace": "trainjob"},
                "spec": {"holderIdentity": "another", "leaseDurationSeconds": 600},
            }
        )
        await until(lambda: server.open_watches()["TrainJob"] == 1)
        server.fault = lambda _seen: ConnectionError("away")
        server.end_watches()
        asked = len(server.paths)
        await until(lambda: len(server.paths) > asked + 20)
        server.fault = lambda _seen: None
        await until(lambda: server.open_watches()["TrainJob"] == 1)
        assert not operator.task.done()
        assert {write for write in server.writes() if "Lease" not in write} == {"create Secret key"}


async def test_a_part_that_fails_ends_all_and_gives_the_lease_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = asyncio.Event()
    run = KubeCluster.run

    async def run_and_break(self: KubeCluster) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(run(self))
            await broken.wait()
            raise ValueError("a defect")

    monkeypatch.setattr(KubeCluster, "run", run_and_break)
    async with run_operator() as (server, operator):
        await until(lambda: _holder(server) == "me")
        broken.set()
        assert await operator.end() is ExitCode.FAILED
        assert _holder(server) == ""
    assert "The cache loop has failed: stopping" in caplog.text
    assert "a defect" in caplog.text


async def test_it_is_not_ready_before_it_has_read_what_it_needs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "trainjob.controller.health")
    async with run_operator() as (server, _), aiohttp.ClientSession() as session:
        server.fault = lambda _seen: ConnectionError("away")
        await until(lambda: bool(caplog.messages) and len(server.paths) > 2)
        port = caplog.text.rpartition("on port ")[2].split()[0]
        async with session.get(f"http://127.0.0.1:{port}/readyz") as answer:
            assert answer.status == 503
            assert await answer.text() == (
                "caches: not filled for the first time yet\nagent key: not read yet\nprocess: ok\n"
            )


async def test_pages_when_the_work_is_stuck(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trainjob.controller.health")
    monkeypatch.setattr("trainjob.controller.health.STUCK_SECONDS", 0.2)
    let_go = asyncio.Event()

    async def hang(_self: KubeCluster, _key: object) -> None:
        await let_go.wait()

    async with run_operator() as (server, _), aiohttp.ClientSession() as session:
        await until(lambda: server.open_watches()["TrainJob"] == 1)
        port = caplog.messages[-1].split()[-1]

        async def status(page: str) -> int:
            async with session.get(f"http://127.0.0.1:{port}{page}") as answer:
                return answer.status

        assert await status("/readyz") == 200
        monkeypatch.setattr(KubeCluster, "observe", hang)
        server.put(build_job())
        async with asyncio.timeout(30):
            while await status("/livez") == 200:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.05)
        assert await status("/readyz") == 200
        let_go.set()


def _holder(server: FakeApiServer) -> str:
    lease = server.find("Lease", "lease", "trainjob")
    return str(lease["spec"]["holderIdentity"]) if lease else ""
