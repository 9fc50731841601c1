"""A KubeCluster on a real API server: its own service account, and a player of the kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from testbed import Cluster
from testbed.waiting import until

from support.kube.chart import CONTROLLER_RULES, Manifest
from support.kube.kube_cluster import open_kube
from trainjob.cluster import ClusterError
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.cluster import KubeCluster
from trainjob.cluster.kube.config import Access, from_kubeconfig
from trainjob.cluster.kube.resources import PODS, TRAINJOBS

REPOSITORY = Path(__file__).parents[3]
ACCOUNT = "controller"


def install_crd(cluster: Cluster) -> None:
    cluster.apply(REPOSITORY / "manifests" / "crd" / "crd.yaml")
    await_crd(cluster, "trainjobs.trainjob.dev")


def await_crd(cluster: Cluster, name: str) -> None:
    """Return once its objects can be created. (`kubectl wait` fails on a CRD that has no condition yet.)"""

    def is_established() -> bool:
        conditions = cluster.get("crd", name).get("status", {}).get("conditions") or ()
        return any((c["type"], c["status"]) == ("Established", "True") for c in conditions)

    until(is_established, what=f"CRD {name} established", seconds=30)


def grant(
    cluster: Cluster, namespace: str, folder: Path, rules: Sequence[Manifest] = CONTROLLER_RULES
) -> Access:
    """Make a service account that may do this in the namespace, and return its access."""
    rbac = "rbac.authorization.k8s.io"
    meta = {"name": ACCOUNT, "namespace": namespace}
    cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta})
    cluster.apply({"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": meta, "rules": rules})
    cluster.apply(
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": rbac, "kind": "Role", "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
        }
    )
    return from_kubeconfig(cluster.kubeconfig_of(ACCOUNT, namespace, folder))


@asynccontextmanager
async def open_admin(cluster: Cluster) -> AsyncIterator[ApiClient]:
    """Return a client that may do everything."""
    async with ApiClient(from_kubeconfig(cluster.kubeconfig)) as api:
        yield api


@asynccontextmanager
async def open_real(access: Access, namespace: str, **options: Any) -> AsyncIterator[KubeCluster]:
    """Return a running cluster of one namespace, by that access."""
    given = {f: getattr(access, f) for f in access.__dataclass_fields__ if f != "server"}
    async with open_kube(access.server, access=given, namespace=namespace, **options) as kube:
        yield kube


def through(url: str, access: Access) -> Access:
    """Return the access by way of a proxy that speaks plain HTTP."""
    return replace(access, server=url, ca_file=None)


class RealKubelet:
    """Sets the states of pods that no node will ever run.

    `exit_code` of a pod that runs is asked each time; None lets it run on. `pods` were seen last. All pods
    have the address `host`, or each its own.
    """

    def __init__(
        self,
        admin: ApiClient,
        namespace: str,
        exit_code: Callable[[Manifest], int | None],
        host: str | None = None,
    ) -> None:
        self._admin = admin
        self._namespace = namespace
        self.exit_code = exit_code
        self.pods: list[Manifest] = []
        self._host_of_all = host
        self._hosts: dict[str, str] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            self.pods = (await self._admin.list(PODS, self._namespace))["items"]
            for pod in self.pods:
                with suppress(ClusterError):  # it has changed: next time
                    await self._see_to(pod)
            await asyncio.sleep(0.05)

    async def _see_to(self, pod: Manifest) -> None:
        phase = pod["status"]["phase"]
        if phase == "Pending" and not pod["spec"].get("schedulingGates"):
            await self._set(pod, "Running", {"running": {"startedAt": now()}})
        elif phase == "Running" and (code := self.exit_code(pod)) is not None:
            ended = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now()}
            await self._set(pod, "Failed" if code else "Succeeded", {"terminated": ended})

    async def _set(self, pod: Manifest, phase: str, state: Manifest) -> None:
        running = phase == "Running"
        trainer = {
            "name": "trainer",
            "image": "example.com/digits:1",
            "imageID": "",
            "ready": running,
            "restartCount": 0,
            "state": state,
        }
        status = {
            **pod["status"],
            "phase": phase,
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": str(running)},
            ],
            "containerStatuses": [trainer],
            "podIP": self._host(pod),
            "podIPs": [{"ip": self._host(pod)}],
        }
        changed = {"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"], "status": status}
        await self._admin.replace(PODS, changed, subresource="status")

    def _host(self, pod: Manifest) -> str:
        """Return an address of this machine; one that no other pod has, and where no server listens."""
        if self._host_of_all is not None:
            return self._host_of_all
        number = len(self._hosts) + 1
        return self._hosts.setdefault(pod["metadata"]["uid"], f"127.77.{number >> 8}.{number & 255}")


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def states(admin: ApiClient, namespace: str) -> dict[str, str | None]:
    jobs = (await admin.list(TRAINJOBS, namespace))["items"]
    return {job["metadata"]["name"]: job.get("status", {}).get("state") for job in jobs}


async def eventually(
    ask: Callable[[], Coroutine[Any, Any, Any]], holds: Callable[[Any], object], *, guard: float = 180.0
) -> None:
    """Ask the API server again and again until the answer is as wanted; the guard is against hanging only."""
    answer: object = None
    try:
        async with asyncio.timeout(guard):
            while not holds(answer := await ask()):  # noqa: ASYNC110 - the server sends no event
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"it stayed at {answer}") from None
