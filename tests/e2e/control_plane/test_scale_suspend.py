"""What people do with kubectl to jobs of a running controller: scale, suspend, wait, delete."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from testbed import Cluster, KubectlError

from support.kube.chart import CONTROLLER_RULES, OWN_RULES
from support.kube.controller import ControllerProcess, run_controller
from support.kube.kube_cluster import running
from support.kube.real_kube import ACCOUNT, RealKubelet, eventually, grant
from support.world.jobs import build_plain_job
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import DEPENDENTS, PODS, TRAINJOBS

Manifest = dict[str, Any]

READING = {"get", "list", "watch"}
OBJECTS = 5
"""Of a job: a Service, a NetworkPolicy, three pods."""

HOLD = "example.com/hold"
"""A finalizer: what has it stays until a test takes it away."""


pytestmark = pytest.mark.usefixtures("crd")


class Place:
    """A namespace with a controller at work, and somebody at kubectl."""

    def __init__(self, cluster: Cluster, admin: ApiClient, namespace: str) -> None:
        self.cluster = cluster
        self.admin = admin
        self.namespace = namespace
        self.codes: dict[str, int] = {}
        """With what the jobs' pods end, by job."""

    async def kubectl(self, *words: str) -> str:
        """Run it beside everything else."""
        return await asyncio.to_thread(self.cluster.kubectl, *words, "-n", self.namespace)

    async def submit(self, *names: str, **job: Any) -> None:
        for name in names:
            # Its pods are nobody's processes: there are no agents to be asked.
            await self.admin.create(TRAINJOBS, build_plain_job(name=name, namespace=self.namespace, **job))

    async def is_running(self, *names: str) -> None:
        for name in names:
            await self.kubectl("wait", "--for=condition=Running", f"tj/{name}", "--timeout=60s")

    async def pods(self, job: str) -> list[Manifest]:
        items: list[Manifest] = (
            await self.admin.list(PODS, self.namespace, selector=f"trainjob.dev/job={job}")
        )["items"]
        return items

    async def has_pods(self, job: str, count: int) -> None:
        await eventually(lambda: self.pods(job), lambda pods: len(pods) == count)

    async def hold(self, pod: Manifest, *finalizers: str) -> None:
        patch = json.dumps({"metadata": {"finalizers": list(finalizers)}})
        await self.kubectl("patch", "pod", pod["metadata"]["name"], "--type=merge", "-p", patch)

    def exit_code(self, pod: Manifest) -> int | None:
        return self.codes.get(pod["metadata"]["labels"]["trainjob.dev/job"])


@pytest.fixture
async def place(control_plane: Cluster, admin: ApiClient, namespace: str) -> AsyncIterator[Place]:
    made = Place(control_plane, admin, namespace)
    async with running(RealKubelet(admin, namespace, made.exit_code).run()):
        yield made


@pytest.fixture
async def controller(place: Place, tmp_path: Path) -> AsyncIterator[ControllerProcess]:
    grant(place.cluster, place.namespace, tmp_path, CONTROLLER_RULES + OWN_RULES)
    kubeconfig = tmp_path / f"{place.namespace}-{ACCOUNT}.kubeconfig"
    async with at_work(kubeconfig, place.namespace, place.namespace) as process:
        yield process
        assert "Traceback" not in process.log


@asynccontextmanager
async def at_work(kubeconfig: Path, namespace: str, leases: str) -> AsyncIterator[ControllerProcess]:
    options = (f"--namespace={namespace}", f"--lease-namespace={leases}")
    async with run_controller(kubeconfig, *options) as process:
        await process.says("At work")
        yield process


async def calls(controller: ControllerProcess) -> Counter[tuple[str, str, str]]:
    """How often it has asked for what, by verb, resource and answer."""
    _, page = await controller.get("/metrics")
    line = r'^trainjob_api_requests_total\{code="(\d+)",resource="([^"]+)",verb="(\w+)"\} (\S+)'
    found = re.findall(line, page, re.MULTILINE)
    return Counter({(verb, what, code): int(float(count)) for code, what, verb, count in found})


async def created(controller: ControllerProcess) -> int:
    """How many objects of jobs it has created."""
    made = await calls(controller)
    return sum(made["create", resource.plural, "201"] for resource in DEPENDENTS)


async def test_scale(place: Place, controller: ControllerProcess) -> None:
    await place.submit("x")
    await place.is_running("x")
    assert "scaled" in await place.kubectl("scale", "tj/x", "--replicas=3")
    await place.kubectl("wait", "--for=jsonpath={.status.worker.summary}=3/3", "tj/x", "--timeout=60s")
    await place.is_running("x")
    await place.has_pods("x", 4)
    scale = json.loads(await place.kubectl("get", "tj", "x", "--subresource=scale", "-o", "json"))
    assert (scale["spec"]["replicas"], scale["status"]["replicas"]) == (3, 3)
    selected = await place.kubectl("get", "pods", "-l", scale["status"]["selector"], "-o", "name")
    assert len(selected.split()) == 3
    await place.kubectl("scale", "tj/x", "--replicas=1")
    await place.kubectl("wait", "--for=jsonpath={.status.worker.summary}=1/1", "tj/x", "--timeout=60s")
    await place.has_pods("x", 2)
    with pytest.raises(KubectlError, match="should be greater than or equal to 1"):
        await place.kubectl("scale", "tj/x", "--replicas=0")
    restarts = (await place.admin.get(TRAINJOBS, place.namespace, "x"))["status"]["restarts"]
    assert not restarts.get("counted")


async def test_suspend_and_continue(place: Place, controller: ControllerProcess) -> None:
    await place.submit("x")
    await place.is_running("x")
    await place.kubectl("patch", "tj", "x", "--type=merge", "-p", '{"spec": {"suspend": true}}')
    await place.kubectl("wait", "--for=condition=Suspended", "tj/x", "--timeout=60s")
    await place.has_pods("x", 0)
    await place.kubectl("patch", "tj", "x", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    await place.is_running("x")
    await place.kubectl("wait", "--for=condition=Suspended=False", "tj/x", "--timeout=60s")
    await place.has_pods("x", 3)


async def test_a_job_that_begins_suspended(place: Place, controller: ControllerProcess) -> None:
    await place.submit("x", suspend=True)
    await place.kubectl("wait", "--for=condition=Suspended", "tj/x", "--timeout=60s")
    assert await created(controller) == 0
    await place.kubectl("patch", "tj", "x", "--type=merge", "-p", '{"spec": {"suspend": false}}')
    await place.is_running("x")


@pytest.mark.parametrize(("code", "condition"), [(0, "Complete"), (1, "Failed")])
async def test_wait(place: Place, controller: ControllerProcess, code: int, condition: str) -> None:
    """Of both outcomes by the time of the end, and of one by its condition."""
    await place.submit("x", maxRestarts=0)
    waits = [
        asyncio.create_task(place.kubectl("wait", f"--for={what}", "tj/x", "--timeout=60s"))
        for what in ("jsonpath={.status.completionTime}", f"condition={condition}")
    ]
    await place.is_running("x")
    assert not any(wait.done() for wait in waits)
    place.codes["x"] = code
    assert {await wait for wait in waits} == {"trainjob.trainjob.dev/x condition met\n"}


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
async def test_delete(place: Place, controller: ControllerProcess, cascade: str) -> None:
    await place.submit("x")
    await place.is_running("x")
    assert await created(controller) == OBJECTS
    held, *rest = await place.pods("x")
    await place.hold(held, HOLD)
    await place.kubectl("delete", "tj", "x", f"--cascade={cascade}", "--wait=false")
    left = await _left_of_a_deletion(place, cascade, len(rest))
    assert {pod["metadata"]["name"] for pod in left} >= {held["metadata"]["name"]}
    # By the time that a later job runs, whatever was to be done about this one has been done.
    await place.submit("y")
    await place.is_running("y")
    await place.has_pods("y", 3)
    assert await created(controller) == 2 * OBJECTS
    assert len(await place.pods("x")) == len(left)
    await place.hold(held)
    await place.kubectl("wait", "--for=delete", "tj/x", "--timeout=60s")


async def _left_of_a_deletion(place: Place, cascade: str, others: int) -> list[Manifest]:
    """Wait until the pods that can go have gone, and return the rest."""
    expected = others + 1 if cascade == "orphan" else 1
    await place.has_pods("x", expected)
    if cascade == "foreground":
        job = await place.admin.get(TRAINJOBS, place.namespace, "x")
        assert "foregroundDeletion" in job["metadata"]["finalizers"]
    else:
        await place.kubectl("wait", "--for=delete", "tj/x", "--timeout=60s")
    return await place.pods("x")


async def test_a_namespace_that_goes(control_plane: Cluster, admin: ApiClient, namespace: str) -> None:
    """Its pods go one by one, before or after their jobs; afterwards there is one of the same name."""
    going = control_plane.create_namespace("going")
    place = Place(control_plane, admin, going)
    names = [f"job-{number}" for number in range(5)]
    kubelet = RealKubelet(admin, going, place.exit_code)
    async with running(kubelet.run()), at_work(control_plane.kubeconfig, going, namespace) as controller:
        await place.submit(*names)
        await place.is_running(*names)
        before, made = await calls(controller), await created(controller)
        assert made == OBJECTS * len(names)
        await asyncio.to_thread(control_plane.delete, "namespace", going, wait=False)
        await asyncio.to_thread(
            control_plane.kubectl, "wait", "--for=delete", f"namespace/{going}", "--timeout=120s", timeout=130
        )
        after = await calls(controller)
        assert await created(controller) == made
        more = Counter({call: count for call, count in (after - before).items() if call[0] not in READING})
        # A look at each of its objects' ends, at most: what is refused now is not tried again at once.
        assert more.total() <= 20 * len(names), more
        control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": going}})
        await place.submit("again")
        await place.is_running("again")
        assert await created(controller) == made + OBJECTS
        assert "Traceback" not in controller.log
    control_plane.delete("namespace", going, wait=False)
