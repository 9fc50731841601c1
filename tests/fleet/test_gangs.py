"""Jobs whose scheduler places their pods together: real ones of Kubernetes, coscheduling and Volcano.

Each is a process beside a control plane of its own. The nodes run nothing: the tests set the states of pods
that have one. What becomes of a job whose gang waits is real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from testbed import Cluster, programs

from support.kube.chart import CONTROLLER_RULES, GANG_RULES
from support.kube.fake_agents import GhostAgents
from support.kube.gangs import (
    COSCHEDULING,
    DEFAULT,
    GROUPED,
    VOLCANO,
    NodesKubelet,
    install_pod_groups,
    make_nodes,
    running_scheduler,
)
from support.kube.helm import own_plane
from support.kube.kube_cluster import running
from support.kube.real_kube import eventually, grant, install_crd, open_admin, open_real
from support.world.jobs import build_job
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import PODS, TRAINJOBS
from trainjob.cluster.kube.transport import Call
from trainjob.controller import Controller
from trainjob.core.integrations.podgroups import PodGroups
from trainjob.core.settings import Bundle, Settings

Manifest = dict[str, Any]

CPU = {"resources": {"requests": {"cpu": "1"}}}
OUTPUT = {"nfs": {"server": "nfs.example.com", "path": "/training"}}
"""No scheduler waits for it."""

NODES, CPUS = 3, 2
"""There is room for six pods: for one and a half of the jobs of four workers."""

AT_ONCE = "waiting for nodes for 4 replicas at once: "

SCHEDULERS = (*([GROUPED] if programs.KUBERNETES == "kubernetes" else []), COSCHEDULING, VOLCANO)


@pytest.fixture(scope="module")
def plane() -> Iterator[Cluster]:
    with own_plane("gangs") as cluster:
        install_crd(cluster)
        install_pod_groups(cluster)
        make_nodes(cluster, NODES, CPUS)
        yield cluster


@pytest.fixture(scope="module")
def grouped_plane() -> Iterator[Cluster]:
    with own_plane("grouped", gates=("GenericWorkload",), served="scheduling.k8s.io/v1beta1") as cluster:
        install_crd(cluster)
        make_nodes(cluster, NODES, CPUS)
        yield cluster


KINDS = PodGroups.KINDS[1:]
"""Those of the other schedulers."""


def members_of(spec: Manifest) -> int:
    return int(
        spec["schedulingPolicy"]["gang"]["minCount"] if "schedulingPolicy" in spec else spec["minMember"]
    )


class Place:
    """A namespace with a controller that has the permissions of the tables; its jobs name one scheduler."""

    def __init__(self, cluster: Cluster, admin: ApiClient, namespace: str, scheduler: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.scheduler = scheduler
        self.codes: dict[str, int] = {}
        self.kubelet = NodesKubelet(admin, namespace, self._exit_code)
        self.calls: list[Call] = []
        self._admin = admin

    def _exit_code(self, pod: Manifest) -> int | None:
        return self.codes.get(pod["metadata"]["labels"]["trainjob.dev/job"])

    def training_pods(self) -> list[Manifest]:
        """Return the pods whose agents meet; not every evaluator gets a node."""
        pods = self.kubelet.pods
        return [pod for pod in pods if pod["metadata"]["labels"]["trainjob.dev/role"] == "worker"]

    async def submit(self, name: str, **changes: Any) -> None:
        options: Manifest = {"workers": 4, "container": CPU, "output": OUTPUT}
        options["pod"] = {"schedulerName": DEFAULT if self.scheduler == GROUPED else self.scheduler}
        job = build_job(name=name, namespace=self.namespace, **{**options, **changes})
        await self._admin.create(TRAINJOBS, job)

    async def edit(self, name: str, **spec: Any) -> None:
        await self._admin.patch(TRAINJOBS, self.namespace, name, {"spec": spec})

    async def status(self, name: str) -> Manifest:
        status: Manifest = (await self._admin.get(TRAINJOBS, self.namespace, name)).get("status", {})
        return status

    async def is_(self, name: str, state: str, message: str = "") -> None:
        """Wait until the job is in this state, with this in its message."""

        def holds(status: Manifest) -> bool:
            return status.get("state") == state and message in status.get("message", "")

        await eventually(lambda: self.status(name), holds, guard=60)

    async def pods(self, name: str, role: str = "worker") -> list[Manifest]:
        selector = f"trainjob.dev/job={name},trainjob.dev/role={role}"
        items: list[Manifest] = (await self._admin.list(PODS, self.namespace, selector=selector))["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    async def placed(self, name: str, role: str = "worker") -> int:
        """Return how many of a role's pods have a node."""
        return sum(bool(pod["spec"].get("nodeName")) for pod in await self.pods(name, role))

    async def groups(self) -> dict[str, int]:
        """Return the least number of members of each job's PodGroup."""
        groups = ["scheduling.k8s.io"] if self.scheduler == GROUPED else [kind.group for kind in KINDS]
        kinds = ",".join(f"podgroups.{group}" for group in groups)
        found = self.cluster.get(kinds, namespace=self.namespace)["items"]
        return {each["metadata"]["labels"]["trainjob.dev/job"]: members_of(each["spec"]) for each in found}

    async def have_groups(self, **members: int) -> None:
        await eventually(self.groups, lambda found: found == members)

    async def one_of_two(self) -> tuple[str, str]:
        """Return the job that runs, and the one whose scheduler has said that it has no room for it."""
        names = ("first", "second")
        await asyncio.gather(*(self.submit(name) for name in names))

        async def states() -> dict[str, tuple[Any, str]]:
            found = {name: await self.status(name) for name in names}
            return {name: (each.get("state"), each.get("message", "")) for name, each in found.items()}

        def is_decided(found: dict[str, tuple[Any, str]]) -> bool:
            waits = [message for state, message in found.values() if state == "Pending"]
            runs = any(state == "Running" for state, _ in found.values())
            return runs and any(AT_ONCE in message for message in waits)

        await eventually(states, is_decided, guard=60)
        found = await states()
        return next((a, b) for a, b in (names, names[::-1]) if found[a][0] == "Running")


@pytest.fixture(params=SCHEDULERS)
async def place(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    plane: Cluster = request.getfixturevalue("grouped_plane" if request.param == GROUPED else "plane")
    namespace = plane.create_namespace()
    access = grant(plane, namespace, tmp_path, CONTROLLER_RULES + GANG_RULES)
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(open_admin(plane))
        place = Place(plane, admin, namespace, request.param)
        agents = GhostAgents(place.training_pods)
        options = {"polling": agents.polling, "on_call": place.calls.append, "use": ["gangs"]}
        kube = await stack.enter_async_context(open_real(access, namespace, **options))
        await kube.synced()
        settings = Settings(bundle=Bundle(b"the agent's program", b"the key"), integrations=kube.integrations)
        controller = Controller(kube, workers=4, settings=settings)
        await stack.enter_async_context(running(controller.run(), place.kubelet.run()))
        stack.enter_context(running_scheduler(plane, request.param, tmp_path / "scheduler"))
        yield place
        plane.delete("tj", "--all", namespace=namespace)
        plane.kubectl("delete", "pods", "--all", "--force", "-n", namespace)
        await place.have_groups()  # nothing is left of any job
    assert 403 not in {call.code for call in place.calls}


async def end(place: Place, name: str, how: str) -> None:
    """Let the job's training end in one of three ways."""
    if how == "finished":
        place.codes[name] = 0  # Volcano's controllers, which don't run here, give its evaluator a group
    elif how == "Suspended":
        await place.edit(name, suspend=True)
        await place.is_(name, how)
    else:
        place.cluster.kubectl("delete", "tj", name, "-n", place.namespace, "--wait=false")


@pytest.mark.parametrize("how", ["finished", "Suspended", "deleted"])
async def test_of_two_jobs_that_half_fit_one_runs_and_the_other_holds_nothing(place: Place, how: str) -> None:
    first, second = await place.one_of_two()
    assert (await place.placed(first), await place.placed(second)) == (4, 0)
    assert (len(await place.pods(second)), await place.pods(second, "evaluator")) == (4, [])
    assert await place.groups() == {first: 4, second: 4}
    await end(place, first, how)
    await place.is_(second, "Running")
    assert await place.placed(second) == 4
    await place.have_groups(**{second: 4})


async def test_the_successor_of_one_pod_is_placed_alone_and_the_group_grows(place: Place) -> None:
    await place.submit("first")
    await place.is_("first", "Running")
    lost = (await place.pods("first"))[1]["metadata"]["name"]
    place.cluster.kubectl("delete", "pod", lost, "-n", place.namespace, "--wait=false")

    async def names() -> set[str]:
        return {p["metadata"]["name"] for p in await place.pods("first") if p["spec"].get("nodeName")}

    await eventually(names, lambda found: len(found) == 4 and lost not in found, guard=60)
    await place.is_("first", "Running")
    await place.edit("first", worker={"replicas": 5})
    await eventually(lambda: place.placed("first"), lambda placed: placed == 5, guard=60)
    assert await place.groups() == {"first": 5}


@pytest.mark.parametrize("place", [DEFAULT], indirect=True)
async def test_without_a_gang_scheduler_both_hold_nodes_and_not_both_run(place: Place) -> None:
    for name in ("first", "second"):
        await place.submit(name, evaluator=False)

    async def placed() -> tuple[int, int]:
        return await place.placed("first"), await place.placed("second")

    await eventually(placed, lambda found: sum(found) == NODES * CPUS, guard=60)
    assert min(await placed()) > 0
    assert await place.groups() == {}
