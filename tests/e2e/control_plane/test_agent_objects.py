"""What brings agents into pods, on a real API server: its size there, upgrades, and what becomes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from support.kube.fake_agents import GhostAgents
from support.kube.kube_cluster import running
from support.kube.real_kube import RealKubelet, eventually, open_real, states
from support.world.jobs import build_job
from trainjob.cluster.agents.bundle import build_bundle
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import Access
from trainjob.cluster.kube.informer import Timeouts
from trainjob.cluster.kube.resources import (
    CLAIMS,
    CONFIG_MAPS,
    JSON,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICES,
    TRAINJOBS,
    Request,
    Resource,
)
from trainjob.controller import Controller
from trainjob.core.agent import AgentSource, program_name, read_source
from trainjob.core.settings import Bundle, Isolation, Settings

KEY = b"the controller's key"
BUNDLE = Bundle(build_bundle(), KEY)
NEWER = Bundle(b"a newer program", KEY)
QUICK = Timeouts(collect=0.2)
STORED = "application/vnd.kubernetes.protobuf"
"""As the API server stores its own kinds; custom ones are JSON."""

KINDS = (TRAINJOBS, SERVICES, CLAIMS, NETWORK_POLICIES, SECRETS)

pytestmark = pytest.mark.usefixtures("crd")


@asynccontextmanager
async def controller(
    access: Access,
    namespace: str,
    kubelet: RealKubelet,
    bundle: Bundle = BUNDLE,
    timeouts: Timeouts | None = None,
) -> AsyncIterator[None]:
    """The controller of one version, and a kubelet."""
    agents = GhostAgents(lambda: kubelet.pods)
    async with open_real(access, namespace, polling=agents.polling, timeouts=timeouts or Timeouts()) as kube:
        working = Controller(kube, settings=Settings(isolation=Isolation(), bundle=bundle))
        async with running(working.run(), kube.collect_programs(bundle), kubelet.run()):
            yield


async def reach(admin: ApiClient, namespace: str, state: str) -> None:
    """Wait until every job of the namespace is in this state."""
    await eventually(lambda: states(admin, namespace), lambda found: set(found.values()) == {state})


async def names(admin: ApiClient, namespace: str, resource: Resource) -> set[str]:
    """Return the names of the project's own objects of one kind."""
    selector = "app.kubernetes.io/managed-by=trainjob"
    listed = await admin.list(resource, namespace, selector=selector)
    return {item["metadata"]["name"] for item in listed["items"]}


async def size_of(admin: ApiClient, resource: Resource, namespace: str, name: str) -> int:
    """Return the bytes of an object as etcd has it."""
    accept = JSON if resource == TRAINJOBS else STORED
    return len(await admin._transport.send(Request("get", resource, namespace, name, accept=accept)))


async def sources(admin: ApiClient, namespace: str) -> dict[str, AgentSource | None]:
    """Return where the agents of all pods come from."""
    pods = (await admin.list(PODS, namespace))["items"]
    return {pod["metadata"]["name"]: read_source(pod["spec"]) for pod in pods}


async def replace_a_worker(admin: ApiClient, namespace: str) -> AgentSource | None:
    """Take worker 1's pod away, and return where its successor's agent comes from."""
    before = await sources(admin, namespace)
    (gone,) = (name for name in before if "-worker-1-" in name)
    uid = (await admin.get(PODS, namespace, gone))["metadata"]["uid"]
    await admin.delete(PODS, namespace, gone, uid=uid, grace_seconds=0)
    await eventually(
        lambda: sources(admin, namespace), lambda found: gone not in found and len(found) == len(before)
    )
    after = await sources(admin, namespace)
    (successor,) = set(after) - set(before)
    return after[successor]


async def test_a_job_takes_eight_kilobytes_in_etcd_beside_its_pods(
    access: Access, admin: ApiClient, namespace: str
) -> None:
    jobs = [f"job-{number}" for number in range(3)]
    kubelet = RealKubelet(admin, namespace, lambda _pod: None)

    async def sizes() -> dict[str, int]:
        found = {}
        for resource in KINDS:
            listed = await admin.list(
                resource, namespace, selector="" if resource == TRAINJOBS else "trainjob.dev/job"
            )
            for item in listed["items"]:
                meta = item["metadata"]
                job = meta.get("labels", {}).get("trainjob.dev/job", meta["name"])
                size = await size_of(admin, resource, namespace, meta["name"])
                found[f"{job} {resource.kind}"] = size
        return found

    async with controller(access, namespace, kubelet):
        for name in jobs:
            await admin.create(
                TRAINJOBS, build_job(name=name, namespace=namespace, output={"claim": {"size": "1Gi"}})
            )
        await reach(admin, namespace, "Running")
        while_running = await sizes()
        assert await names(admin, namespace, CONFIG_MAPS) == {program_name(BUNDLE.digest)}
        program = await size_of(admin, CONFIG_MAPS, namespace, program_name(BUNDLE.digest))
        kubelet.exit_code = lambda _pod: 0
        await reach(admin, namespace, "Complete")
        finished = await sizes()
    print(f"the program, once: {program} bytes")
    for word, found in (("running", while_running), ("finished", finished)):
        print(word, {key: size for key, size in found.items() if key.startswith("job-0 ")})
        for name in jobs:
            of_job = sum(size for key, size in found.items() if key.startswith(f"{name} "))
            print(f"{word}: {name} has {of_job} bytes")
            assert of_job <= 8_000
    assert {key for key in while_running if "Secret" in key} == {f"{name} Secret" for name in jobs}
    assert {key for key in finished if "Secret" in key} == set()


async def test_a_running_job_keeps_its_version_and_both_are_deleted_when_unused(
    access: Access, admin: ApiClient, namespace: str
) -> None:
    kubelet = RealKubelet(admin, namespace, lambda _pod: None)
    async with controller(access, namespace, kubelet, timeouts=QUICK):
        await admin.create(TRAINJOBS, build_job(namespace=namespace))
        await reach(admin, namespace, "Running")
    async with controller(access, namespace, kubelet, NEWER, timeouts=QUICK):
        replaced = await replace_a_worker(admin, namespace)
        assert replaced is not None
        assert replaced.digest == BUNDLE.digest
        await reach(admin, namespace, "Running")
        await admin.create(TRAINJOBS, build_job(name="later", namespace=namespace))
        await reach(admin, namespace, "Running")
        both = {program_name(BUNDLE.digest), program_name(NEWER.digest)}
        assert await names(admin, namespace, CONFIG_MAPS) == both
        kubelet.exit_code = lambda _pod: 0
        await reach(admin, namespace, "Complete")
        await eventually(lambda: names(admin, namespace, CONFIG_MAPS), lambda found: not found)
