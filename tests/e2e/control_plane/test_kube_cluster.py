"""KubeCluster against a real API server, under a service account that may do what the table says, no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from testbed import Cluster

from support.kube.kube_cluster import GUARD_SECONDS, running, until
from support.kube.real_kube import grant, open_real
from support.world.jobs import build_job
from trainjob.api import parse
from trainjob.cluster import AlreadyExists, Conflict, JobKey, NotFound, ObjectRef, Refused, Snapshot
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.cluster import KubeCluster
from trainjob.cluster.kube.config import Access
from trainjob.cluster.kube.informer import Timeouts
from trainjob.cluster.kube.resources import EVENTS, PODS, SERVICES, TRAINJOBS
from trainjob.core.manifests import build_objects

Manifest = dict[str, Any]


pytestmark = pytest.mark.usefixtures("crd")


@pytest.fixture
async def kube(access: Access, namespace: str) -> AsyncIterator[KubeCluster]:
    async with open_real(access, namespace) as kube:
        await kube.synced()
        yield kube


@pytest.fixture
async def job(admin: ApiClient, kube: KubeCluster, namespace: str) -> Manifest:
    created = await admin.create(TRAINJOBS, build_job(namespace=namespace))
    await until(lambda: JobKey(namespace, "digits") in set(kube.job_keys()))
    return created


def key_of(job: Manifest) -> JobKey:
    return JobKey(job["metadata"]["namespace"], job["metadata"]["name"])


def pod_of(job: Manifest) -> Manifest:
    return build_objects(parse(job))[-1]


def ref_of(manifest: Manifest, uid: str | None = None) -> ObjectRef:
    meta = manifest["metadata"]
    return ObjectRef(manifest["kind"], meta["namespace"], meta["name"], uid or meta["uid"])


async def look(kube: KubeCluster, job: Manifest) -> Snapshot:
    snapshot = await kube.observe(key_of(job))
    assert snapshot is not None
    return snapshot


async def eventually(ask: Callable[[], Coroutine[Any, Any, Any]], holds: Callable[[Any], object]) -> Any:
    """Ask again until the answer is good."""
    async with asyncio.timeout(GUARD_SECONDS):
        while not holds(answer := await ask()):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    return answer


async def test_what_is_created_is_seen_at_once_and_its_name_is_in_use(
    kube: KubeCluster, job: Manifest
) -> None:
    for manifest in build_objects(parse(job)):
        await kube.create(manifest)
    snapshot = await look(kube, job)
    assert len(snapshot.pods) == 3
    assert "Service" in snapshot.related
    assert snapshot.pods[0]["apiVersion"] == "v1"
    with pytest.raises(AlreadyExists):
        await kube.create(pod_of(job))


async def test_every_typo_of_a_pod_is_named(kube: KubeCluster, job: Manifest) -> None:
    pod = pod_of(job)
    pod["spec"]["hostNetwrok"] = True
    pod["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(Refused) as raised:
        await kube.create(pod)
    assert raised.value.reason == "BadRequest"
    assert '"spec.hostNetwrok"' in raised.value.message
    assert '"spec.containers[0].imagee"' in raised.value.message


async def test_a_pod_of_wrong_values_is_refused(kube: KubeCluster, job: Manifest) -> None:
    pod = pod_of(job)
    pod["spec"]["containers"][0]["image"] = ""
    with pytest.raises(Refused) as raised:
        await kube.create(pod)
    assert raised.value.reason == "Invalid"
    assert "spec.containers[0].image" in raised.value.message


async def test_a_quota_that_refuses_is_quoted(
    kube: KubeCluster, job: Manifest, control_plane: Cluster, namespace: str
) -> None:
    control_plane.kubectl("create", "quota", "tight", "--hard=pods=0", "-n", namespace)

    async def refused() -> Refused | None:
        try:
            await kube.create(pod_of(job) | {"metadata": pod_of(job)["metadata"] | {"name": "over"}})
        except Refused as refusal:
            return refusal
        return None

    control_plane.kubectl(
        "wait", "--for=jsonpath={.status.hard.pods}=0", "quota/tight", "-n", namespace, "--timeout=30s"
    )
    refusal = await refused()
    assert refusal is not None
    assert refusal.reason == "Forbidden"
    assert "exceeded quota: tight" in refusal.message


async def test_deletions_are_of_the_very_object(kube: KubeCluster, job: Manifest) -> None:
    await kube.create(pod_of(job))
    pod = (await look(kube, job)).pods[0]
    with pytest.raises(Conflict):
        await kube.delete(ref_of(pod, "00000000-0000-0000-0000-000000000000"))
    await kube.delete(ref_of(pod))
    with pytest.raises(NotFound):
        await kube.delete(ref_of(pod))
    assert (await look(kube, job)).pods == ()


async def test_a_bound_pod_keeps_running_for_its_grace_period(
    kube: KubeCluster, job: Manifest, control_plane: Cluster, namespace: str
) -> None:
    pod = pod_of(job)
    pod["spec"]["nodeName"] = "nowhere"
    await kube.create(pod)
    stored = (await look(kube, job)).pods[0]
    await kube.delete(ref_of(stored))
    seen = (await look(kube, job)).pods[0]["metadata"]
    assert "deletionTimestamp" in seen
    assert seen["deletionGracePeriodSeconds"] == 30
    with pytest.raises(AlreadyExists):
        await kube.create(pod)
    gone = asyncio.Event()
    kube.watch(lambda _key: gone.set())
    control_plane.kubectl(
        "delete", "pod", pod["metadata"]["name"], "-n", namespace, "--force", "--grace-period=0"
    )
    await eventually(lambda: look(kube, job), lambda snapshot: snapshot.pods == ())
    assert gone.is_set()


async def test_labels_are_set_on_and_removed_from_the_very_object(kube: KubeCluster, job: Manifest) -> None:
    await kube.create(pod_of(job))
    pod = (await look(kube, job)).pods[0]
    with pytest.raises(Conflict):
        await kube.set_labels(ref_of(pod, "00000000-0000-0000-0000-000000000000"), {"a": "b"})
    await kube.set_labels(ref_of(pod), {"trainjob.dev/a": "b", "trainjob.dev/live": None})
    labels = (await look(kube, job)).pods[0]["metadata"]["labels"]
    assert labels["trainjob.dev/a"] == "b"
    assert "trainjob.dev/live" not in labels
    assert labels["trainjob.dev/job"] == "digits"


async def test_the_status_is_replaced_and_nothing_else(
    kube: KubeCluster, job: Manifest, admin: ApiClient, namespace: str
) -> None:
    meta = {"annotations": {"note": "keep"}, "labels": {"team": "a"}, "finalizers": ["example.com/hold"]}
    job = await admin.patch(TRAINJOBS, namespace, "digits", {"metadata": meta})
    uid, version = job["metadata"]["uid"], job["metadata"]["resourceVersion"]
    await kube.write_status(key_of(job), uid, version, {"state": "Starting", "attempt": 1})
    assert (await look(kube, job)).job["status"] == {"state": "Starting", "attempt": 1}
    written = await admin.get(TRAINJOBS, namespace, "digits")
    assert written["status"] == {"state": "Starting", "attempt": 1}
    assert written["spec"] == job["spec"]
    assert {name: written["metadata"][name] for name in meta} == meta
    assert written["metadata"]["generation"] == job["metadata"]["generation"]
    with pytest.raises(Conflict):
        await kube.write_status(key_of(job), uid, version, {"state": "Running"})
    with pytest.raises(Conflict):
        await kube.write_status(
            key_of(job),
            "00000000-0000-0000-0000-000000000000",
            written["metadata"]["resourceVersion"],
            {"state": "Running"},
        )
    await kube.write_status(key_of(job), uid, written["metadata"]["resourceVersion"], {})
    assert (await look(kube, job)).job.get("status", {}) == {}
    await admin.patch(TRAINJOBS, namespace, "digits", {"metadata": {"finalizers": None}})


async def test_a_job_that_is_gone_is_forgotten(
    kube: KubeCluster, job: Manifest, admin: ApiClient, namespace: str
) -> None:
    await admin.delete(TRAINJOBS, namespace, "digits", uid=job["metadata"]["uid"])
    with pytest.raises(NotFound):
        await kube.write_status(key_of(job), job["metadata"]["uid"], job["metadata"]["resourceVersion"], {})
    assert await kube.observe(key_of(job)) is None


async def test_what_a_job_owned_goes_with_it(
    kube: KubeCluster, job: Manifest, admin: ApiClient, namespace: str
) -> None:
    for manifest in build_objects(parse(job)):
        await kube.create(manifest)
    await admin.delete(TRAINJOBS, namespace, "digits", uid=job["metadata"]["uid"])
    stores = [kube._stores[PODS], kube._stores[SERVICES]]
    # The garbage collector looks for new kinds, such as this one, only each 30 s.
    await until(
        lambda: [len(store) for store in stores] == [0, 0], "the garbage collector removes all", guard=90
    )


async def test_repeated_events_become_one(
    kube: KubeCluster, job: Manifest, admin: ApiClient, namespace: str
) -> None:
    async def events() -> list[Manifest]:
        found: list[Manifest] = (await admin.list(EVENTS, namespace))["items"]
        return found

    for count in (1, 2, 3):
        await kube.post_event(
            job, type_="Warning", reason="Restarting", message="worker 0 failed: " + "é" * 900
        )
        await eventually(events, lambda found, n=count: [event["count"] for event in found] == [n])
    await kube.post_event(job, type_="Normal", reason="Complete", message="done")
    found = await eventually(events, lambda found: len(found) == 2)
    assert {event["type"] for event in found} == {"Normal", "Warning"}
    assert all(event["involvedObject"]["uid"] == job["metadata"]["uid"] for event in found)
    assert max(len(event["message"].encode()) for event in found) <= 1024


async def test_kubectl_describe_shows_the_events(
    kube: KubeCluster, job: Manifest, control_plane: Cluster, namespace: str
) -> None:
    await kube.post_event(job, type_="Normal", reason="Created", message="starting 2 workers")

    async def described() -> str:
        return await asyncio.to_thread(control_plane.kubectl, "describe", "tj", "digits", "-n", namespace)

    text = await eventually(described, lambda text: "starting 2 workers" in text)
    assert "trainjob-controller" in text


@pytest.mark.parametrize("labelled", [False, True])
async def test_a_service_that_is_not_ours_is_seen(
    kube: KubeCluster, job: Manifest, admin: ApiClient, namespace: str, labelled: bool
) -> None:
    labels = {"trainjob.dev/job": "digits"} if labelled else {}
    theirs = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "digits", "namespace": namespace, "labels": labels},
        "spec": {"clusterIP": "None", "selector": {"a": "b"}},
    }
    stored = await admin.create(SERVICES, theirs)
    service = next(m for m in build_objects(parse(job)) if m["kind"] == "Service")
    with pytest.raises(AlreadyExists):
        await kube.create(service)
    seen = (await look(kube, job)).related.get("Service")
    assert seen is not None
    assert seen["metadata"]["uid"] == stored["metadata"]["uid"]


async def test_nothing_can_be_created_in_a_namespace_that_ends(
    kube: KubeCluster, job: Manifest, control_plane: Cluster, namespace: str
) -> None:
    control_plane.kubectl("create", "configmap", "hold", "-n", namespace)
    hold = ("patch", "configmap", "hold", "-n", namespace, "--type=merge", "-p")
    control_plane.kubectl(*hold, '{"metadata":{"finalizers":["example.com/hold"]}}')
    control_plane.delete("namespace", namespace, wait=False)
    try:
        with pytest.raises(Refused) as raised:
            await kube.create(pod_of(job))
        assert raised.value.reason == "NamespaceTerminating"
    finally:
        control_plane.kubectl(*hold, '{"metadata":{"finalizers":null}}')


async def test_watches_continue_after_their_time(access: Access, admin: ApiClient, namespace: str) -> None:
    watches: list[str] = []
    async with open_real(
        access,
        namespace,
        timeouts=Timeouts(watch=1.0),
        on_call=lambda call: watches.append(call.resource) if call.verb == "watch" else None,
    ) as kube:
        await kube.synced()
        await until(lambda: watches.count("pods") >= 3)
        job = await admin.create(TRAINJOBS, build_job(namespace=namespace))
        await admin.create(PODS, pod_of(job))
        await eventually(
            lambda: kube.observe(key_of(job)), lambda seen: seen is not None and len(seen.pods) == 1
        )
        assert kube.health().synced


async def test_an_account_without_permission_gets_an_error_and_never_synced(
    control_plane: Cluster, namespace: str, tmp_path: Path
) -> None:
    access = grant(control_plane, namespace, tmp_path, rules=())
    codes: set[int] = set()
    async with (
        open_real(access, namespace, on_call=lambda call: codes.add(call.code), feed=False) as kube,
        running(kube.synced()),
    ):
        await until(lambda: codes == {403})
        assert not kube.health().synced
