"""The controller on a real API server: what a job's life takes, a restart that writes nothing, and faults."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from testbed import Cluster

from support.kube.api_server import Havoc
from support.kube.chart import CONTROLLER_RULES, allowed
from support.kube.fake_agents import GhostAgents
from support.kube.kube_cluster import running
from support.kube.proxy import FaultyProxy
from support.kube.real_kube import RealKubelet, open_real, states, through
from support.kube.webhook import open_webhook
from support.world.jobs import build_job
from trainjob.api import parse
from trainjob.cluster import AlreadyExists, ClusterError, Conflict, JobKey, ObjectRef, Refused
from trainjob.cluster.kube import agent_programs
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.cluster import KubeCluster
from trainjob.cluster.kube.config import Access, build_tls, from_kubeconfig
from trainjob.cluster.kube.informer import Timeouts
from trainjob.cluster.kube.resources import DEPENDENTS, NETWORK_POLICIES, PODS, TRAINJOBS
from trainjob.cluster.kube.transport import Call
from trainjob.controller import Controller
from trainjob.core.manifests import build_network_policy, build_objects, build_program
from trainjob.core.observed import is_same_policy
from trainjob.core.settings import Bundle, Isolation, Settings

Manifest = dict[str, Any]

GUARD_SECONDS = 180.0
"""Against hanging only."""

READING = {"get", "list", "watch"}

BUNDLE = Bundle(b"the agent's program", b"the controller's key")


pytestmark = pytest.mark.usefixtures("crd")


@asynccontextmanager
async def open_controller(
    access: Access,
    namespace: str,
    on_reconciled: Callable[[JobKey, float], None] = lambda _key, _seconds: None,
    kubelet: RealKubelet | None = None,
    **options: Any,
) -> AsyncIterator[KubeCluster]:
    agents = GhostAgents(lambda: kubelet.pods if kubelet is not None else [])
    async with open_real(access, namespace, polling=agents.polling, **options) as kube:
        settings = Settings(isolation=Isolation(), bundle=BUNDLE)
        controller = Controller(kube, workers=8, settings=settings, on_reconciled=on_reconciled)
        async with running(controller.run(), kube.collect_programs(BUNDLE)):
            yield kube


async def reach(admin: ApiClient, namespace: str, expected: dict[str, str | None]) -> None:
    """Wait until the jobs of the namespace are these, in these states."""
    found: dict[str, str | None] | None = None
    try:
        async with asyncio.timeout(GUARD_SECONDS):
            while found != expected:
                await asyncio.sleep(0.05)
                found = await states(admin, namespace)
    except TimeoutError:
        raise AssertionError(f"{found} never became {expected}") from None


def role_of(pod: Manifest) -> str:
    role: str = pod["metadata"]["labels"]["trainjob.dev/role"]
    return role


async def test_a_life_of_five_pods_takes_its_objects_and_at_most_four_status_writes(
    access: Access, admin: ApiClient, namespace: str
) -> None:
    calls: list[Call] = []
    finished: set[str] = set()
    kubelet = RealKubelet(admin, namespace, lambda pod: 0 if role_of(pod) in finished else None)
    async with (
        open_controller(access, namespace, kubelet=kubelet, on_call=calls.append),
        running(kubelet.run()),
    ):
        job = build_job(namespace=namespace, workers=4, output={"claim": {"size": "1Gi"}})
        await admin.create(TRAINJOBS, job)
        await reach(admin, namespace, {"digits": "Running"})
        finished.add("worker")
        async with asyncio.timeout(GUARD_SECONDS):
            while (await _phases(admin, namespace))["Succeeded"] < 4:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.05)
        finished.add("evaluator")
        await reach(admin, namespace, {"digits": "Complete"})
    writes = Counter(f"{c.verb} {c.resource}" for c in calls if c.verb not in READING)
    assert writes.pop("update trainjobs/status") <= 4
    assert writes.pop("create events") <= 4
    assert writes == {
        "create persistentvolumeclaims": 1,
        "create services": 1,
        "create configmaps": 1,
        "create secrets": 1,
        "delete secrets": 1,
        "create networkpolicies": 1,
        "create pods": 5,
    }
    assert {call.code for call in calls} <= {200, 201}


RULES: tuple[dict[str, Any], ...] = (
    {"from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {}}}], "ports": [{"port": 9090}]},
    {"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": []}}], "ports": [{"port": 1, "endPort": 9}]},
    {"from": [], "ports": [{"port": "metrics", "protocol": "UDP"}]},
)
"""All that a NetworkPolicy's ingress may hold, and all that the API server adds to it or leaves out."""


async def test_a_network_policy_is_left_as_it_is_stored_and_put_right_when_it_was_changed(
    access: Access, admin: ApiClient, namespace: str
) -> None:
    created = await admin.create(TRAINJOBS, build_job(namespace=namespace))
    policy = build_network_policy(parse(created), Isolation("trainjob-system", RULES))
    stored = await admin.create(NETWORK_POLICIES, policy)
    assert stored["spec"] != policy["spec"]
    assert is_same_policy(stored["spec"], policy["spec"])

    await admin.patch(NETWORK_POLICIES, namespace, "digits", {"spec": {"ingress": [{}]}})
    async with open_real(access, namespace) as kube:
        await kube.synced()
        snapshot = await kube.observe(JobKey(namespace, "digits"))
        assert snapshot is not None
        seen = snapshot.related["NetworkPolicy"]["metadata"]
        state = {key: seen[key] for key in ("uid", "resourceVersion")}
        again = {**policy, "metadata": {**policy["metadata"], **state}}
        await kube.replace(again)
        with pytest.raises(Conflict):
            await kube.replace(again)
    found = await admin.get(NETWORK_POLICIES, namespace, "digits")
    assert found["spec"] == stored["spec"]


async def test_what_a_policy_denies_is_waited_for(
    access: Access, admin: ApiClient, control_plane: Cluster, namespace: str
) -> None:
    name, api = f"{namespace}-label", "admissionregistration.k8s.io/v1"
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    needs = {"expression": "has(object.metadata.labels.team)", "message": "which team pays?"}
    policy = {"matchConstraints": {**here, "resourceRules": [pods]}, "validations": [needs]}
    binding = {"policyName": name, "validationActions": ["Deny"]}
    for kind, spec in (("ValidatingAdmissionPolicy", policy), ("ValidatingAdmissionPolicyBinding", binding)):
        control_plane.apply({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec})
    job = build_job(namespace=namespace, evaluator=False)
    asked = next(m for m in build_objects(parse(job)) if m["kind"] == "Pod")
    del asked["metadata"]["ownerReferences"]
    kubelet = RealKubelet(admin, namespace, lambda _pod: None)
    async with open_controller(access, namespace, kubelet=kubelet), running(kubelet.run()):
        async with asyncio.timeout(GUARD_SECONDS):
            with contextlib.suppress(Refused):
                while True:
                    await admin.create(PODS, asked, dry_run=True)
                    await asyncio.sleep(0.2)
        await admin.create(TRAINJOBS, job)
        await reach(admin, namespace, {"digits": "Pending"})
        async with asyncio.timeout(GUARD_SECONDS):
            message = ""
            while "which team pays?" not in message:
                found = await admin.get(TRAINJOBS, namespace, "digits")
                message = found["status"]["message"]
                await asyncio.sleep(0.05)
        assert message.startswith("the cluster refuses Pod digits-worker-")
        control_plane.kubectl("delete", "validatingadmissionpolicybinding,validatingadmissionpolicy", name)
        await reach(admin, namespace, {"digits": "Running"})


@pytest.mark.parametrize(
    ("code", "reason"), [(403, "Forbidden"), (400, "BadRequest"), (422, "Invalid"), (409, "AlreadyExists")]
)
async def test_what_a_webhook_denies_is_waited_for(
    code: int,
    reason: str,
    access: Access,
    admin: ApiClient,
    control_plane: Cluster,
    namespace: str,
    tmp_path: Path,
) -> None:
    """Whatever it answers: a webhook writes the whole status."""
    status = {"code": code, "reason": reason, "message": "which team pays?"}
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    kubelet, denied = RealKubelet(admin, namespace, lambda _pod: None), []

    def deny(request: dict[str, Any]) -> dict[str, Any]:
        denied.append(request["name"])
        return {"allowed": False, "status": status}

    async with (
        open_webhook(control_plane, "Validating", namespace, [pods], deny, tmp_path) as webhook,
        open_controller(access, namespace, kubelet=kubelet),
        running(kubelet.run()),
    ):
        await admin.create(TRAINJOBS, build_job(namespace=namespace, evaluator=False))
        async with asyncio.timeout(GUARD_SECONDS):
            message = ""
            while "which team pays?" not in message:
                await asyncio.sleep(0.05)
                found = (await admin.get(TRAINJOBS, namespace, "digits")).get("status") or {}
                message = found.get("message", "")
        assert found["state"] == "Pending"
        assert denied
        control_plane.kubectl("delete", webhook)
        await reach(admin, namespace, {"digits": "Running"})


async def test_a_network_policy_that_a_webhook_rewrites_is_restored_once(
    access: Access, admin: ApiClient, control_plane: Cluster, namespace: str, tmp_path: Path
) -> None:
    rewritten: list[str] = []

    def rewrite(request: dict[str, Any]) -> dict[str, Any]:
        """Open and label each policy, as policy engines do."""
        rewritten.append(request["operation"])
        patch = [
            {"op": "add", "path": "/metadata/labels/policy.example.com~1seen", "value": "yes"},
            {"op": "add", "path": "/spec/ingress", "value": [{}]},
        ]
        encoded = base64.b64encode(json.dumps(patch).encode()).decode()
        return {"allowed": True, "patchType": "JSONPatch", "patch": encoded}

    policies = {
        "apiGroups": ["networking.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["networkpolicies"],
    }
    calls: list[Call] = []
    finished: set[str] = set()
    kubelet = RealKubelet(admin, namespace, lambda pod: 0 if role_of(pod) in finished else None)
    async with (
        open_webhook(control_plane, "Mutating", namespace, [policies], rewrite, tmp_path),
        open_controller(access, namespace, kubelet=kubelet, on_call=calls.append),
        running(kubelet.run()),
    ):
        await admin.create(TRAINJOBS, build_job(namespace=namespace))
        async with asyncio.timeout(GUARD_SECONDS):
            while "UPDATE" not in rewritten:  # noqa: ASYNC110 - the webhook adds to it
                await asyncio.sleep(0.05)
        finished.update(("worker", "evaluator"))
        await reach(admin, namespace, {"digits": "Complete"})
    replaced = [call for call in calls if (call.verb, call.resource) == ("update", "networkpolicies")]
    assert [call.code for call in replaced] == [200]
    assert rewritten == ["CREATE", "UPDATE"]


async def _phases(admin: ApiClient, namespace: str) -> Counter[str]:
    pods = (await admin.list(PODS, namespace))["items"]
    return Counter(pod["status"]["phase"] for pod in pods)


async def test_the_table_of_permissions_is_what_is_really_asked_for(
    access: Access, admin: ApiClient, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under an account that has these permissions and no others, the calls made are those of the table."""
    monkeypatch.setattr(agent_programs, "CHECKED_SECONDS", 0.0)  # so that each program is looked at
    calls: list[Call] = []
    table = set(allowed(CONTROLLER_RULES))
    # Nobody calls finalizers: the API server asks for it when an object with blockOwnerDeletion is created.
    expected = table - {("trainjob.dev", "trainjobs/finalizers", "update")}

    def made() -> set[tuple[str, str, str]]:
        return {(call.group, call.resource, call.verb) for call in calls}

    kubelet = RealKubelet(admin, namespace, lambda _pod: 0)
    timeouts = Timeouts(collect=0.2)
    async with open_controller(
        access, namespace, kubelet=kubelet, on_call=calls.append, timeouts=timeouts
    ) as kube:
        await admin.create(TRAINJOBS, build_job(namespace=namespace, output={"claim": {"size": "1Gi"}}))
        async with asyncio.timeout(GUARD_SECONDS):
            while ("", "events", "list") not in made():
                await place_pods(admin, namespace)
        async with running(kubelet.run()):
            await reach(admin, namespace, {"digits": "Complete"})
        await provoke(kube, namespace)
        await admin.patch(TRAINJOBS, namespace, "digits", {"spec": {"ttlSecondsAfterFinished": 0}})
        await reach(admin, namespace, {})
        # The watch tells of a deletion before its answer comes, and only what is answered is recorded.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GUARD_SECONDS):
                while not expected <= made():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
    assert made() == expected
    assert 403 not in {call.code for call in calls}


async def place_pods(admin: ApiClient, namespace: str) -> None:
    """Give the pods nodes, long ago, on which they don't start."""
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    for pod in (await admin.list(PODS, namespace))["items"]:
        status = {"status": {"conditions": [placed]}}
        await admin.patch(PODS, namespace, pod["metadata"]["name"], status, subresource="status")
    await asyncio.sleep(0.1)


async def provoke(kube: KubeCluster, namespace: str) -> None:
    """Run into everything that makes the cluster look again, and say one thing twice."""
    for _ in range(2):
        await kube.create(build_program(namespace, BUNDLE))
    snapshot = await kube.observe(JobKey(namespace, "digits"))
    assert snapshot is not None
    for manifest in build_objects(parse(snapshot.job)):
        with pytest.raises(AlreadyExists):
            await kube.create(manifest)
    stored = snapshot.related["NetworkPolicy"]
    with pytest.raises(AlreadyExists):
        await kube.create({**stored, "metadata": _new(stored)})
    await kube.replace({**stored, "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy"})
    with pytest.raises(Conflict):
        await kube.write_status(JobKey(namespace, "digits"), snapshot.job["metadata"]["uid"], "1", {})
    pod = snapshot.pods[0]["metadata"]
    ref = ObjectRef("Pod", namespace, pod["name"], pod["uid"])
    larger = {"name": "trainer", "resources": {"limits": {"memory": "1Gi"}}}
    with contextlib.suppress(Refused):  # a pod that has ended
        await kube.patch(ref, "", {"spec": {"containers": [larger]}}, "resize")
    await kube.set_labels(ref, {"trainjob.dev/live": None})
    await kube.delete(ref)
    for _ in range(2):
        await kube.post_event(snapshot.job, type_="Normal", reason="Told", message="twice")
        await asyncio.sleep(0.2)


def _new(manifest: Manifest) -> Manifest:
    meta = manifest["metadata"]
    return {"name": meta["name"], "namespace": meta["namespace"], "labels": meta["labels"]}


async def test_a_restart_with_many_jobs_writes_nothing(
    access: Access, admin: ApiClient, namespace: str
) -> None:
    names = [f"job-{number:03}" for number in range(60)]
    finishing = set(names[:30])
    expected: dict[str, str | None] = {n: "Complete" if n in finishing else "Running" for n in names}

    def exit_code(pod: Manifest) -> int | None:
        return 0 if pod["metadata"]["labels"]["trainjob.dev/job"] in finishing else None

    kubelet = RealKubelet(admin, namespace, exit_code)
    async with open_controller(access, namespace, kubelet=kubelet), running(kubelet.run()):
        for name in names:
            await admin.create(
                TRAINJOBS, build_job(name=name, namespace=namespace, workers=1, evaluator=False)
            )
        await reach(admin, namespace, expected)
    before = await versions(admin, namespace)
    looked_at: set[str] = set()
    calls: list[Call] = []
    async with (
        open_controller(
            access,
            namespace,
            lambda key, _seconds: looked_at.add(key.name),
            kubelet,
            on_call=calls.append,
        ),
        asyncio.timeout(GUARD_SECONDS),
    ):
        while looked_at != set(names):  # noqa: ASYNC110 - counted by the callback
            await asyncio.sleep(0.05)
    assert [call for call in calls if call.verb not in READING] == []
    assert await versions(admin, namespace) == before


async def versions(admin: ApiClient, namespace: str) -> dict[str, set[tuple[str, str]]]:
    """Return the uid and resourceVersion of everything that jobs are made of, by kind."""
    found = {}
    for resource in (TRAINJOBS, *DEPENDENTS):
        listed = await admin.list(
            resource, namespace, selector="" if resource is TRAINJOBS else "trainjob.dev/job"
        )
        found[resource.kind] = {
            (m["metadata"]["uid"], m["metadata"]["resourceVersion"]) for m in listed["items"]
        }
    return found


def cached(kube: KubeCluster) -> dict[str, set[tuple[str, str]]]:
    """The same of the caches."""
    held = {r.kind: store.items() for r, store in kube._stores.items()} | {"TrainJob": kube.jobs()}
    return {
        kind: {(m["metadata"]["uid"], m["metadata"]["resourceVersion"]) for m in items}
        for kind, items in held.items()
    }


@pytest.mark.parametrize("seed", range(3))
async def test_it_converges_behind_a_faulty_proxy_and_keeps_no_ghosts(
    access: Access, admin: ApiClient, control_plane: Cluster, namespace: str, seed: int
) -> None:
    timeouts = Timeouts(watch=3.0, inactivity=2.0, resync=2.0, sweep=1.0, first_retry=0.05, longest_retry=0.2)
    owner = from_kubeconfig(control_plane.kubeconfig)
    # The proxy knows the API server, and speaks with the tokens of those behind it only.
    tls = build_tls(replace(owner, certificate_file=None))
    kubelet = RealKubelet(admin, namespace, lambda _pod: 0)
    names = [f"job-{number}" for number in range(8)]
    async with FaultyProxy(owner.server, tls).serve() as proxy:
        havoc = Havoc(proxy, seed, faults=80)
        async with (
            open_controller(
                through(proxy.url, access), namespace, kubelet=kubelet, timeouts=timeouts
            ) as kube,
            running(kubelet.run()),
        ):
            for name in names:
                await admin.create(TRAINJOBS, build_job(name=name, namespace=namespace))
            async with asyncio.timeout(GUARD_SECONDS):
                while havoc.left > 50:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.05)
            for name in names[:2]:
                job = await admin.get(TRAINJOBS, namespace, name)
                await admin.delete(TRAINJOBS, namespace, name, uid=job["metadata"]["uid"])
            await admin.create(TRAINJOBS, build_job(name=names[1], namespace=namespace, workers=1))
            await reach(admin, namespace, dict.fromkeys(names[1:], "Complete"))
            havoc.stop()
            async with asyncio.timeout(GUARD_SECONDS):
                while cached(kube) != await versions(admin, namespace):  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.05)
        pods = (await admin.list(PODS, namespace))["items"]
        for name in names:
            assert await expected_pods(admin, namespace, name) == {
                pod["metadata"]["name"]
                for pod in pods
                if pod["metadata"]["labels"]["trainjob.dev/job"] == name
            }


async def expected_pods(admin: ApiClient, namespace: str, name: str) -> set[str]:
    """The pods of a first attempt; none when the job is gone."""
    try:
        job = parse(await admin.get(TRAINJOBS, namespace, name))
    except ClusterError:
        return set()
    return {m["metadata"]["name"] for m in build_objects(job) if m["kind"] == "Pod"}
