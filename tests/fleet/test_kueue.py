"""Jobs in queues of the real Kueue: its manager, CRDs and webhooks on a control plane of their own.

There is no node: the tests set the states of pods. What the controller reads and writes, and what Kueue makes
of it, is real; that pods save before they end is for tests of the node tier.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from testbed import Cluster, Unfit

from support.kube.chart import CONTROLLER_RULES, KUEUE_CLUSTER_RULES, KUEUE_RULES
from support.kube.fake_agents import GhostAgents
from support.kube.gangs import make_nodes
from support.kube.helm import own_plane
from support.kube.kube_cluster import running
from support.kube.kueue import Kueue, running_kueue
from support.kube.real_kube import RealKubelet, eventually, grant, install_crd, open_admin, open_real
from support.world.jobs import build_job
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import EVENTS, PODS, TRAINJOBS
from trainjob.cluster.kube.transport import Call
from trainjob.controller import Controller
from trainjob.core.integrations import INTEGRATIONS
from trainjob.core.settings import Bundle, Settings

Manifest = dict[str, Any]

BUNDLE = Bundle(b"the agent's program", b"the controller's key")
POSITIONS = "visibility.kueue.x-k8s.io", "localqueues/pendingworkloads", "get"
HOSTNAME = "kubernetes.io/hostname"
CPU = {"resources": {"requests": {"cpu": "1"}}}


@pytest.fixture(scope="module")
def plane() -> Iterator[Cluster]:
    with own_plane("kueue") as cluster:
        install_crd(cluster)
        yield cluster


@pytest.fixture(scope="module")
def kueue(plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kueue]:
    try:
        with running_kueue(plane, tmp_path_factory.mktemp("kueue")) as kueue:
            kueue.await_collector()
            yield kueue
    except Unfit as error:
        pytest.skip(str(error))


class Place:
    """A namespace with a queue for three pods, and a controller that has the permissions of the tables."""

    def __init__(self, kueue: Kueue, admin: ApiClient, namespace: str) -> None:
        self.kueue = kueue
        self.cluster = kueue.cluster
        self.admin = admin
        self.namespace = namespace
        self.codes: dict[tuple[str, str], int] = {}
        self.kubelet = RealKubelet(admin, namespace, self._exit_code)
        self.calls: list[Call] = []

    def _exit_code(self, pod: Manifest) -> int | None:
        labels = pod["metadata"]["labels"]
        job, role = labels["trainjob.dev/job"], labels["trainjob.dev/role"]
        return self.codes.get((job, role), self.codes.get((job, "")))

    async def submit(
        self,
        name: str,
        *,
        queue: str = "research",
        priority: str = "",
        annotations: dict[str, str] | None = None,
        **changes: Any,
    ) -> None:
        labels = {"kueue.x-k8s.io/queue-name": queue}
        labels |= {"kueue.x-k8s.io/priority-class": priority} if priority else {}
        meta = {"labels": labels, "annotations": annotations or {}}
        job = build_job(name=name, namespace=self.namespace, metadata=meta, container=CPU, **changes)
        await self.admin.create(TRAINJOBS, job)

    async def edit(self, name: str, **spec: Any) -> None:
        await self.admin.patch(TRAINJOBS, self.namespace, name, {"spec": spec})

    async def status(self, name: str) -> Manifest:
        status: Manifest = (await self.admin.get(TRAINJOBS, self.namespace, name)).get("status", {})
        return status

    async def is_(self, name: str, state: str, message: str = "", *, guard: float = 60) -> None:
        """Wait until the job is in this state, with this in its message."""

        def holds(status: Manifest) -> bool:
            return status.get("state") == state and message in status.get("message", "")

        await eventually(lambda: self.status(name), holds, guard=guard)

    async def pods(self, name: str) -> list[Manifest]:
        selector = f"trainjob.dev/job={name}"
        items: list[Manifest] = (await self.admin.list(PODS, self.namespace, selector=selector))["items"]
        return items

    async def events(self, reason: str) -> list[str]:
        items = (await self.admin.list(EVENTS, self.namespace))["items"]
        return [event["message"] for event in items if event["reason"] == reason]

    def workload_of(self, name: str) -> Manifest:
        found = self.kueue.workloads(self.namespace)
        return next(w for w in found if w["metadata"].get("labels", {}).get("trainjob.dev/job") == name)

    async def nothing_is_terminating(self) -> None:
        async def terminating() -> list[str]:
            found = [*self.kueue.workloads(self.namespace)]
            found += (await self.admin.list(PODS, self.namespace))["items"]
            return [o["metadata"]["name"] for o in found if "deletionTimestamp" in o["metadata"]]

        await eventually(terminating, lambda names: not names, guard=60)


@pytest.fixture(params=["v1beta2"])
async def place(
    kueue: Kueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Place]:
    """A place for a controller that knows this version of Kueue's API only."""
    integration, group = INTEGRATIONS[0], "kueue.x-k8s.io"
    kinds = (replace(k, versions=(request.param,)) if k.group == group else k for k in integration.KINDS)
    monkeypatch.setattr(integration, "KINDS", tuple(kinds))
    async with open_place(kueue, kueue.cluster.create_namespace(), tmp_path) as place:
        yield place


@asynccontextmanager
async def open_place(kueue: Kueue, namespace: str, folder: Path) -> AsyncIterator[Place]:
    cluster = kueue.cluster
    kueue.make_queue(namespace, cpus=3)
    access = grant(cluster, namespace, folder, CONTROLLER_RULES + KUEUE_RULES)
    _grant_everywhere(cluster, namespace)
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(open_admin(cluster))
        place = Place(kueue, admin, namespace)
        agents = GhostAgents(lambda: place.kubelet.pods)
        options = {"polling": agents.polling, "on_call": place.calls.append, "use": ["kueue"]}
        kube = await stack.enter_async_context(open_real(access, namespace, **options))
        await kube.synced()
        settings = Settings(bundle=BUNDLE, integrations=kube.integrations)
        controller = Controller(kube, workers=4, settings=settings)
        await stack.enter_async_context(running(controller.run(), place.kubelet.run()))
        yield place
    refused = {(call.group, call.resource, call.verb) for call in place.calls if call.code == 403}
    assert refused <= {POSITIONS}  # by Kueue itself, while it starts
    assert POSITIONS not in refused or 200 in {c.code for c in place.calls if c.group == POSITIONS[0]}


def _grant_everywhere(cluster: Cluster, namespace: str) -> None:
    rbac, name = "rbac.authorization.k8s.io", f"controller-{namespace}"
    head = {"apiVersion": f"{rbac}/v1", "metadata": {"name": name}}
    cluster.apply({**head, "kind": "ClusterRole", "rules": KUEUE_CLUSTER_RULES})
    subject = {"kind": "ServiceAccount", "name": "controller", "namespace": namespace}
    role = {"apiGroup": rbac, "kind": "ClusterRole", "name": name}
    cluster.apply({**head, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]})


async def end(place: Place, name: str, how: str) -> None:
    """Take the job to a state, or delete it and what it owns in the background or foreground."""
    if how in ("Complete", "Failed"):
        place.codes[name, ""] = int(how == "Failed")
        await place.is_(name, how)
    elif how == "Suspended":
        await place.edit(name, suspend=True)
        await place.is_(name, how)
    else:
        words = ("delete", "tj", name, "-n", place.namespace, "--wait=false", f"--cascade={how}")
        place.cluster.kubectl(*words)


@pytest.mark.parametrize("how", ["Complete", "Failed", "Suspended", "background", "foreground"])
async def test_of_two_jobs_the_second_starts_when_the_first_ends(place: Place, how: str) -> None:
    await place.submit("first", maxRestarts=0)
    await place.is_("first", "Running")
    assert {pod["spec"]["nodeSelector"]["pool"] for pod in await place.pods("first")} == {"gpu"}
    await place.submit("second")
    await place.is_("second", "Queued", "couldn't assign flavors to pod set")
    assert await place.pods("second") == []
    assert "startTime" not in await place.status("second")
    await end(place, "first", how)
    await place.is_("second", "Running", guard=10)
    await place.nothing_is_terminating()
    place.codes["second", ""] = 0
    await place.is_("second", "Complete")
    if how == "Suspended":
        await place.edit("first", suspend=False)
        await place.is_("first", "Running")
    left = {w["metadata"]["labels"]["trainjob.dev/job"] for w in place.kueue.workloads(place.namespace)}
    assert left == ({"second"} if how in ("background", "foreground") else {"first", "second"})


@pytest.mark.parametrize("place", ["v1beta2", "v1beta1"], indirect=True)
async def test_a_job_of_higher_priority_preempts_another_which_resumes(place: Place) -> None:
    place.kueue.make_priority("urgent", 100)
    await place.submit("usual")
    await place.is_("usual", "Running")
    await place.submit("urgent", priority="urgent")
    await place.is_("usual", "Queued")
    await place.is_("urgent", "Running")
    (evicted,) = await place.events("Evicted")
    assert evicted.startswith("evicted by Kueue (Preempted): Preempted to accommodate a workload")
    assert [pod for pod in await place.pods("usual") if pod["status"]["phase"] == "Running"] == []
    place.codes["urgent", ""] = 0
    await place.is_("usual", "Running", "attempt 2")
    restarts = (await place.status("usual"))["restarts"]
    assert (restarts.get("counted", 0), restarts.get("notCounted", 0)) == (0, 0)
    await place.nothing_is_terminating()


async def test_fewer_workers_are_admitted(place: Place) -> None:
    await place.submit("x", worker={"replicas": 5, "minReplicas": 2}, evaluator=False)
    await place.is_("x", "Running", "queue research admits 3 of 5 workers")
    worker = (await place.status("x"))["worker"]
    assert (worker["size"], worker["summary"]) == (3, "3/3")
    assert len(await place.pods("x")) == 3


async def test_quota_of_workers_that_have_finished_or_were_scaled_down_is_free(place: Place) -> None:
    await place.submit("first")
    await place.is_("first", "Running")
    await place.submit("small", workers=1, evaluator=False)
    await place.is_("small", "Queued")
    await place.edit("first", worker={"replicas": 1})
    await place.is_("small", "Running")
    await place.edit("first", worker={"replicas": 2})
    await place.is_("first", "Running", "queue research admits 1 of 2 workers")
    place.codes["small", ""] = 0
    await place.is_("small", "Complete")
    await place.submit("wide", workers=2, evaluator=False)
    place.codes["first", "worker"] = 0
    await place.is_("first", "Evaluating")
    await place.is_("wide", "Running")
    place.codes["first", ""] = 0
    await place.is_("first", "Complete")


async def test_a_job_that_waits_may_ask_for_less_or_in_another_queue(place: Place) -> None:
    await place.submit("large", workers=5, evaluator=False)
    await place.is_("large", "Queued", "insufficient quota")
    await place.edit("large", worker={"replicas": 2})
    await place.is_("large", "Running")
    await place.submit("elsewhere", queue="nowhere", workers=1, evaluator=False)
    await place.is_("elsewhere", "Queued", "waiting in queue nowhere: LocalQueue nowhere doesn't exist")
    labels = {"kueue.x-k8s.io/queue-name": "research"}
    await place.admin.patch(TRAINJOBS, place.namespace, "elsewhere", {"metadata": {"labels": labels}})
    await place.is_("elsewhere", "Running")


async def test_the_position_in_the_queue_is_told(place: Place) -> None:
    place.kueue.make_priority("later", -1)
    await place.submit("first")
    await place.is_("first", "Running")
    await place.submit("third", priority="later")
    await place.is_("third", "Queued", "waiting in queue research at position 1: couldn't assign flavors")
    await place.submit("second")
    await place.is_("second", "Queued", "waiting in queue research at position 1: couldn't assign flavors")
    await place.is_("third", "Queued", "waiting in queue research at position 2: couldn't assign flavors")


async def test_what_an_admission_check_adds_reaches_the_pods(place: Place) -> None:
    check = f"check-{place.namespace}"
    place.kueue.make_check(check)
    place.kueue.make_queue(place.namespace, 3, admissionChecksStrategy={"admissionChecks": [{"name": check}]})
    await place.submit("x")
    await place.is_("x", "Queued", f"waiting in queue research, which has quota for it: {check}: pending")
    update = {
        "name": "worker",
        "labels": {"example.com/label": "1"},
        "annotations": {"example.com/annotation": "2"},
        "nodeSelector": {"example.com/node": "3"},
        "tolerations": [{"key": "example.com/spot", "operator": "Exists"}],
    }
    place.kueue.answer_check(place.workload_of("x"), check, "Ready", podSetUpdates=[update])
    await place.is_("x", "Running")
    for pod in await place.pods("x"):
        meta, spec = pod["metadata"], pod["spec"]
        is_worker = meta["labels"]["trainjob.dev/role"] == "worker"
        added = {
            "labels": {k: v for k, v in meta["labels"].items() if k.startswith("example.com/")},
            "annotations": {
                k: v for k, v in meta.get("annotations", {}).items() if k.startswith("example.com/")
            },
            "nodeSelector": {k: v for k, v in spec["nodeSelector"].items() if k.startswith("example.com/")},
            "tolerations": [t for t in spec["tolerations"] if t["key"].startswith("example.com/")],
        }
        wanted = {key: update[key] for key in added}
        assert added == (wanted if is_worker else {key: type(value)() for key, value in wanted.items()})
    await place.submit("dear", workers=1, evaluator=False)
    await end(place, "x", "Complete")
    await place.is_("dear", "Queued", "which has quota for it")
    place.kueue.answer_check(place.workload_of("dear"), check, "Rejected", message="over budget")
    await place.is_("dear", "Queued", "over budget")


async def test_workers_are_placed_by_topology_in_the_order_of_racks(place: Place) -> None:
    make_nodes(place.cluster, 3, 2, pool="gpu")
    for node, rack in (("node-0", "b"), ("node-1", "a"), ("node-2", "a")):
        place.cluster.kubectl("label", "node", node, f"rack={rack}", "--overwrite")
    place.kueue.make_topology(place.namespace, "rack", HOSTNAME)
    place.kueue.make_queue(place.namespace, 100, flavor={"topologyName": place.namespace})

    async def nodes_of(name: str) -> list[str]:
        pods = sorted(
            await place.pods(name), key=lambda pod: int(pod["metadata"]["labels"]["trainjob.dev/index"])
        )
        assert {"schedulingGates" in pod["spec"] for pod in pods} == {False}
        return [pod["spec"]["nodeSelector"][HOSTNAME] for pod in pods]

    trainer = {"name": "trainer", "image": "example.com/x:1", "command": ["python", "train.py"], **CPU}
    together = {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}}
    compact = {"metadata": together, "spec": {"containers": [trainer]}}
    await place.submit("compact", workers=4, evaluator=False, template=compact)
    await place.is_("compact", "Running")
    assert await nodes_of("compact") == ["node-1", "node-1", "node-2", "node-2"]
    await place.submit("second", workers=4, evaluator=False, template=compact)
    await place.is_("second", "Queued", "topology")

    (pod,) = [each for each in await place.pods("compact") if "-worker-3-" in each["metadata"]["name"]]
    await place.admin.delete(PODS, place.namespace, pod["metadata"]["name"], uid="")
    await place.is_("compact", "Running", "attempt 2")
    assert await nodes_of("compact") == ["node-1", "node-1", "node-2", "node-2"]

    await end(place, "compact", "Complete")
    await place.is_("second", "Running")
    await end(place, "second", "Complete")
    await place.submit("anywhere", workers=6, evaluator=False)
    await place.is_("anywhere", "Running")
    nodes = await nodes_of("anywhere")
    assert nodes == sorted(nodes, key=["node-1", "node-2", "node-0"].index)


async def test_quota_is_borrowed_from_a_cohort_until_its_owner_wants_it(place: Place) -> None:
    cohort = {"cohortName": place.namespace, "preemption": {"reclaimWithinCohort": "Any"}}
    place.kueue.make_queue(place.namespace, 3, **cohort)
    place.kueue.make_queue(place.namespace, 3, "owner", **cohort)
    await place.submit("borrower", workers=5, evaluator=False)
    await place.is_("borrower", "Running")
    await place.submit("owned", queue="owner")
    await place.is_("borrower", "Queued")
    await place.is_("owned", "Running")
    assert "evicted by Kueue (Preempted)" in "".join(await place.events("Evicted"))
    place.codes["owned", ""] = 0
    await place.is_("borrower", "Running", "attempt 2")


async def test_a_workload_that_was_made_before_its_job_becomes_the_jobs(place: Place) -> None:
    template = {"spec": {"containers": [{"name": "trainer", "image": "example.com/x:1", **CPU}]}}
    sets = [{"name": "worker", "count": 2}, {"name": "evaluator", "count": 1}]
    spec = {"queueName": "research", "podSets": [{**each, "template": template} for each in sets]}
    head = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload"}
    place.cluster.apply({**head, "metadata": {"name": "made", "namespace": place.namespace}, "spec": spec})
    await place.submit("x", annotations={"kueue.x-k8s.io/prebuilt-workload-name": "made"})
    await place.is_("x", "Running")
    assert {pod["spec"]["nodeSelector"]["pool"] for pod in await place.pods("x")} == {"gpu"}
    await place.submit("second")
    await place.is_("second", "Queued")
    await end(place, "x", "Complete")
    await place.is_("second", "Running")
    names = {workload["metadata"]["name"] for workload in place.kueue.workloads(place.namespace)}
    assert len(names) == 2
    assert place.workload_of("x")["metadata"]["name"] == "made"
    place.cluster.kubectl("delete", "tj", "x", "-n", place.namespace)

    async def left() -> set[str]:
        return {workload["metadata"]["name"] for workload in place.kueue.workloads(place.namespace)}

    await eventually(left, lambda found: "made" not in found, guard=60)


@pytest.fixture
def other_kueue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kueue]:
    """Kueue in another cluster."""
    with own_plane("kueue-elsewhere") as cluster:
        install_crd(cluster)
        with running_kueue(cluster, tmp_path_factory.mktemp("elsewhere")) as other:
            yield other


async def test_multikueue_runs_a_job_in_another_cluster(
    other_kueue: Kueue, place: Place, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both clusters have Kueue and a controller; only the other one has pods."""
    other_kueue.cluster.kubectl("create", "namespace", place.namespace)
    async with open_place(other_kueue, place.namespace, tmp_path_factory.mktemp("access")) as elsewhere:
        await _is_run_elsewhere(place, elsewhere)


async def _is_run_elsewhere(place: Place, elsewhere: Place) -> None:
    name = f"elsewhere-{place.namespace}"
    place.kueue.make_remote(name, elsewhere.cluster)
    place.kueue.make_queue(place.namespace, 3, admissionChecksStrategy={"admissionChecks": [{"name": name}]})
    here = {"managedBy": "kueue.x-k8s.io/multikueue"}
    await place.submit("first", **here)
    await place.submit("second", **here)
    await place.is_("first", "Running")
    await elsewhere.is_("first", "Running")
    await place.is_("second", "Queued", "waiting in queue research")
    assert await place.pods("first") == []
    assert len(elsewhere.kueue.workloads(place.namespace)) == 1
    elsewhere.codes["first", ""] = 0
    await place.is_("first", "Complete")
    await place.is_("second", "Running")

    await place.edit("second", suspend=True)
    await place.is_("second", "Suspended")

    async def jobs() -> set[str]:
        found = (await elsewhere.admin.list(TRAINJOBS, place.namespace))["items"]
        return {job["metadata"]["name"] for job in found}

    await eventually(jobs, lambda found: not found, guard=60)
    await place.edit("second", suspend=False)
    await place.is_("second", "Running")
    place.cluster.kubectl("delete", "tj", "second", "-n", place.namespace)
    await eventually(jobs, lambda found: not found, guard=60)
    await elsewhere.nothing_is_terminating()
    await place.nothing_is_terminating()
    left = {w["metadata"]["labels"]["trainjob.dev/job"] for w in place.kueue.workloads(place.namespace)}
    assert left == {"first"}


async def test_kueue_restarts_in_the_middle(place: Place) -> None:
    await place.submit("first")
    await place.is_("first", "Running")
    uids = {pod["metadata"]["uid"] for pod in await place.pods("first")}
    place.kueue.kill()
    await place.submit("second")
    await place.is_("second", "Queued")
    assert (await place.status("first"))["state"] == "Running"
    place.kueue.start()
    await place.is_("second", "Queued", "couldn't assign flavors to pod set")
    assert {pod["metadata"]["uid"] for pod in await place.pods("first")} == uids
    place.kueue.kill()
    place.codes["first", ""] = 0
    await place.is_("first", "Complete")
    place.kueue.start()
    await place.is_("second", "Running")
    await place.nothing_is_terminating()
