"""`trainjob controller` as processes of this machine, at a real API server, with the rights of the table."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from testbed import Cluster

from support.kube.chart import CONTROLLER_RULES, OWN_RULES
from support.kube.controller import ControllerProcess, run_controller
from support.kube.kube_cluster import running
from support.kube.real_kube import ACCOUNT, RealKubelet, grant, states
from support.world.jobs import build_job
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import BY_KIND, PODS, TRAINJOBS, Resource
from trainjob.controller.election import LEASES

Manifest = dict[str, Any]

GUARD_SECONDS = 180.0
"""Against hanging only; benchmarks/failover.py measures how soon another replica is at work."""


pytestmark = pytest.mark.usefixtures("crd")


class Place:
    """A namespace with an account for controllers in it."""

    def __init__(self, admin: ApiClient, namespace: str, kubeconfig: Path) -> None:
        self.admin = admin
        self.namespace = namespace
        self.kubeconfig = kubeconfig

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[ControllerProcess]:
        options = (f"--namespace={self.namespace}", f"--lease-namespace={self.namespace}")
        async with run_controller(self.kubeconfig, *options) as process:
            yield process

    async def submit(self, *names: str, **job: Any) -> None:
        for name in names:
            await self.admin.create(TRAINJOBS, build_job(name=name, namespace=self.namespace, **job))

    async def all(self, resource: Resource) -> list[Manifest]:
        items: list[Manifest] = (await self.admin.list(resource, self.namespace))["items"]
        return items

    async def has_pods(self, count: int) -> None:
        """Return once there are so many pods."""
        await _eventually(lambda: self.all(PODS), lambda pods: len(pods) >= count)

    async def holder(self) -> str:
        lease = await self.admin.get(LEASES, self.namespace, "trainjob-controller")
        return str(lease["spec"]["holderIdentity"])

    async def versions(self) -> dict[str, str]:
        """Return the resourceVersion of everything that concerns the jobs."""
        return {
            f"{kind} {item['metadata']['name']}": item["metadata"]["resourceVersion"]
            for kind, resource in BY_KIND.items()
            for item in await self.all(resource)
        }


@pytest.fixture
def place(control_plane: Cluster, admin: ApiClient, namespace: str, tmp_path: Path) -> Place:
    grant(control_plane, namespace, tmp_path, CONTROLLER_RULES + OWN_RULES)
    return Place(admin, namespace, tmp_path / f"{namespace}-{ACCOUNT}.kubeconfig")


async def test_a_leader_that_is_stopped_is_followed_at_once(place: Place) -> None:
    async with place.controller() as leader:
        await leader.says("At work")
        async with place.controller() as standby:
            await standby.says("waiting for the lease")
            assert (await standby.get("/readyz"))[0] == 200
            await place.submit("before")
            await place.has_pods(3)
            leader.send(signal.SIGTERM)
            await standby.says("At work")
            assert await leader.ended() == 0, leader.log
            await place.submit("after")
            await place.has_pods(6)
            standby.send(signal.SIGTERM)
            assert await standby.ended() == 0, standby.log
    assert await place.holder() == ""
    assert "Traceback" not in leader.log + standby.log


async def test_a_leader_that_is_killed_is_followed_and_nothing_is_lost_or_doubled(place: Place) -> None:
    names = [f"job-{number}" for number in range(10)]
    async with place.controller() as leader:
        await leader.says("At work")
        async with place.controller() as standby:
            await standby.says("waiting for the lease")
            submitting = asyncio.create_task(place.submit(*names))
            await place.has_pods(5)
            leader.send(signal.SIGKILL)
            await standby.says("At work")
            await submitting
            await place.submit("last")
            await place.has_pods(33)
    _assert_one_pod_a_replica(await place.all(PODS), {*names, "last"})


async def test_a_restart_writes_nothing(place: Place) -> None:
    async with place.controller() as controller:
        await controller.says("At work")
        await place.submit("first", "second")
        await place.has_pods(6)
        await _said(place, "first", "second")
        controller.send(signal.SIGTERM)
        assert await controller.ended() == 0
    before = await place.versions()
    async with place.controller() as controller:
        await controller.says("At work")
        await place.submit("third")  # worked on after those that were there
        await place.has_pods(9)
        after = await place.versions()
    assert {what: after.get(what) for what in before} == before


async def test_fifty_jobs_end_well_after_kills(place: Place) -> None:
    names = {f"job-{number}" for number in range(50)}
    kubelet = RealKubelet(place.admin, place.namespace, lambda _pod: 0)
    async with running(kubelet.run()), place.controller() as first, place.controller() as second:
        replicas = [first, second]
        await asyncio.wait([asyncio.ensure_future(r.says("waiting for the lease")) for r in replicas])
        # Their pods are nobody's processes: there are no agents to be asked.
        submitting = asyncio.create_task(place.submit(*names, restartStrategy="Recreate"))
        await place.has_pods(20)
        await _kill_leader(replicas)
        async with place.controller() as third:
            replicas.append(third)
            await replicas[0].says("At work")
            await submitting
            await _kill_leader(replicas)
            await _complete(place, names)
    _assert_one_pod_a_replica(await place.all(PODS), names)
    restarts = [job["status"].get("restarts", {}) for job in await place.all(TRAINJOBS)]
    assert not any(restart.get("counted") or restart.get("notCounted") for restart in restarts)


async def test_another_projects_kind_of_the_same_name(control_plane: Cluster, place: Place) -> None:
    control_plane.apply(FOREIGN_CRD)
    try:
        control_plane.kubectl(
            "wait", "--for=condition=Established", f"crd/{FOREIGN_CRD['metadata']['name']}", "--timeout=30s"
        )
        async with place.controller() as controller:
            await controller.says("At work")
            foreign = {
                "apiVersion": "a.example.org/v1alpha1",
                "kind": "TrainJob",
                "metadata": {"name": "theirs", "namespace": place.namespace},
            }
            control_plane.apply(foreign)
            await place.submit("ours")
            await place.has_pods(3)
            assert "theirs" not in controller.log
            await _eventually(
                lambda: controller.get("/metrics"),
                lambda page: 'trainjob_jobs{state="Pending"} 1.0' in page[1],
            )
    finally:
        control_plane.delete("crd", FOREIGN_CRD["metadata"]["name"])


async def test_a_deleted_job_is_not_begun_again(place: Place) -> None:
    names = [f"job-{number}" for number in range(10)]
    async with place.controller() as controller:
        await controller.says("At work")
        await place.submit(*names)
        await place.has_pods(30)
        for job in await place.all(TRAINJOBS):
            meta = job["metadata"]
            await place.admin.delete(TRAINJOBS, place.namespace, meta["name"], uid=meta["uid"])
        await _eventually(lambda: place.all(PODS), lambda pods: not pods)
        _, metrics = await controller.get("/metrics")
    assert _created_pods(metrics) == 30


def _created_pods(metrics: str) -> float:
    wanted = 'trainjob_api_requests_total{code="201",resource="pods",verb="create"} '
    return next(float(line.removeprefix(wanted)) for line in metrics.splitlines() if line.startswith(wanted))


async def _said(place: Place, *names: str) -> None:
    """Return once each job's story has begun to be told."""
    await _eventually(
        lambda: place.all(BY_KIND["Event"]),
        lambda events: {event["involvedObject"]["name"] for event in events} == set(names),
    )


async def _complete(place: Place, names: set[str]) -> None:
    await _eventually(
        lambda: states(place.admin, place.namespace),
        lambda found: found == dict.fromkeys(names, "Complete"),
    )


async def _eventually(ask: Callable[[], Coroutine[Any, Any, Any]], holds: Callable[[Any], object]) -> None:
    """Ask the API server again and again until the answer is as wanted."""
    answer: object = None
    try:
        async with asyncio.timeout(GUARD_SECONDS):
            while not holds(answer := await ask()):  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"it stayed at {answer}") from None


async def _kill_leader(replicas: list[ControllerProcess]) -> None:
    """Kill the replica that is at work, and take it off the list."""
    (leader,) = [replica for replica in replicas if "At work" in replica.log]
    leader.send(signal.SIGKILL)
    replicas.remove(leader)
    await leader.ended()


def _assert_one_pod_a_replica(pods: list[Manifest], jobs: set[str]) -> None:
    labels = [pod["metadata"]["labels"] for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    found = Counter(
        (label["trainjob.dev/job"], label["trainjob.dev/role"], label["trainjob.dev/index"])
        for label in labels
    )
    replicas = (("worker", "0"), ("worker", "1"), ("evaluator", "0"))
    assert found == Counter((job, *replica) for job in jobs for replica in replicas)


FOREIGN_CRD: Manifest = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "trainjobs.a.example.org"},
    "spec": {
        "group": "a.example.org",
        "names": {"kind": "TrainJob", "plural": "trainjobs", "singular": "trainjob"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}
