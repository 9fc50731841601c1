"""Jobs whose scheduler places their pods together: which pods these are, and the life of their PodGroup."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from support.golden import Golden
from support.world.jobs import build_job, build_plain_job
from support.world.world import World
from trainjob.api import parse
from trainjob.cluster.protocol import Refused, Unavailable
from trainjob.core.integrations.podgroups import (
    COSCHEDULING,
    KUBERNETES,
    VOLCANO,
    PodGroups,
    build_pod_group,
    pod_group_name,
    read_gang,
)
from trainjob.core.settings import Settings

Manifest = dict[str, Any]

POD_GROUP_APIS = (KUBERNETES, COSCHEDULING, VOLCANO)
BOTH = Settings(integrations=(PodGroups(PodGroups.KINDS),))
LABEL, ANNOTATION = "scheduling.x-k8s.io/pod-group", "scheduling.k8s.io/group-name"


def build_gang_job(scheduler: str = "gangs", **changes: Any) -> Manifest:
    return build_job(**{"pod": {"schedulerName": scheduler}, **changes})


def gang_of(
    job: Manifest, served: tuple[str, ...] = POD_GROUP_APIS
) -> tuple[str, tuple[str, ...], int] | None:
    gang = read_gang(parse({**job, "metadata": {**job["metadata"], "uid": "7"}}), served)
    return gang and (gang.api_version, gang.roles, gang.min_member)


WORKER = ("worker",)


@pytest.mark.parametrize(
    ("scheduler", "served", "kind"),
    [
        ("volcano", POD_GROUP_APIS, VOLCANO),
        ("gangs", POD_GROUP_APIS, COSCHEDULING),
        ("volcano", (COSCHEDULING,), None),
        ("gangs", (VOLCANO,), None),
        ("gangs", (), None),
        ("default-scheduler", POD_GROUP_APIS, KUBERNETES),
        ("", POD_GROUP_APIS, KUBERNETES),
        ("", (COSCHEDULING, VOLCANO), None),
    ],
)
def test_the_scheduler_decides_on_the_kind_of_group(
    scheduler: str, served: tuple[str, ...], kind: str | None
) -> None:
    assert gang_of(build_gang_job(scheduler), served) == (kind and (kind, WORKER, 2))


def with_metadata(kind: str, name: str) -> Manifest:
    job = build_gang_job()
    job["spec"]["template"]["metadata"] = {kind: {name: "mine"}}
    return job


OTHER = {"spec": {"containers": [{"name": "trainer", "image": "a", "command": ["b"]}]}}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (build_gang_job(worker={"replicas": 4, "minReplicas": 2}), (WORKER, 2)),
        (build_gang_job(workers=4, restartStrategy="Recreate"), (WORKER, 4)),
        (build_gang_job(chief={}, ps={"replicas": 3}), (("chief", "worker", "ps"), 6)),
        (build_gang_job(chief={}, ps={"replicas": 3, "template": OTHER}), (("chief", "worker"), 3)),
        (build_gang_job(evaluator=False), (WORKER, 2)),
        (with_metadata("labels", LABEL), None),
        (with_metadata("annotations", ANNOTATION), None),
        (build_gang_job(pod={"schedulerName": "gangs", "schedulingGroup": {"podGroupName": "mine"}}), None),
    ],
)  # fmt: skip
def test_members_are_the_training_pods_that_this_scheduler_places(job: Manifest, expected: Any) -> None:
    assert gang_of(job) == (expected and (COSCHEDULING, *expected))


def test_members_of_kubernetes_own_gangs_have_one_priority() -> None:
    job = build_job(chief={"priorityClassName": "high"}, ps={"replicas": 3}, worker={"replicas": 4})
    assert gang_of(job) == (KUBERNETES, ("worker", "ps"), 7)
    parsed = parse({**job, "metadata": {**job["metadata"], "uid": "7"}})
    gang = read_gang(parsed, POD_GROUP_APIS)
    assert gang is not None
    assert build_pod_group(parsed, gang)["spec"] == {"schedulingPolicy": {"gang": {"minCount": 7}}}


def test_volcanos_group_has_the_templates_queue_and_priority() -> None:
    source = build_gang_job("volcano", worker={"replicas": 2, "priorityClassName": "high"}, uid="7")
    source["spec"]["template"]["metadata"] = {"annotations": {"scheduling.volcano.sh/queue-name": "research"}}
    job = parse(source)
    gang = read_gang(job, POD_GROUP_APIS)
    assert gang is not None
    group = build_pod_group(job, gang)
    assert group["spec"] == {"minMember": 2, "queue": "research", "priorityClassName": "high"}
    assert build_pod_group(job, replace(gang, api_version=COSCHEDULING))["spec"] == {"minMember": 2}


class GangWorld(World):
    """A job on a fake cluster with both kinds of PodGroup; no pod has a node unless the test gives it one."""

    def __init__(self, job: Manifest | None = None, settings: Settings = BOTH) -> None:
        super().__init__(job or build_gang_job(restartStrategy="Recreate"), settings)

    @property
    def group(self) -> Manifest | None:
        return self.cluster.pod_group(self.key)

    def reject(self, reason: str = "Unschedulable", message: str = "0/3 nodes are available.") -> None:
        """The scheduler has no nodes for the pods that have none."""
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        self.each(lambda pod: self.cluster.change(pod, {"status": {"conditions": [condition]}}), "worker")

    def roles(self) -> list[str]:
        return sorted(pod["metadata"]["labels"]["trainjob.dev/role"] for pod in self.pods)


@pytest.mark.parametrize(
    ("scheduler", "texts", "name"),
    [("gangs", "labels", LABEL), ("volcano", "annotations", ANNOTATION), ("", "spec", "")],
)
async def test_pods_name_their_group_which_the_job_owns(scheduler: str, texts: str, name: str) -> None:
    world = await GangWorld(build_plain_job(pod={"schedulerName": scheduler})).started()
    assert world.group is not None
    assert (
        world.group["metadata"]["ownerReferences"][0]["uid"]
        == world.cluster.job(world.key)["metadata"]["uid"]
    )

    def group_of(pod: Manifest) -> str | None:
        if texts == "spec":
            found: str | None = pod["spec"].get("schedulingGroup", {}).get("podGroupName")
            return found
        return pod["metadata"].get(texts, {}).get(name)  # type: ignore[no-any-return]

    named = {p["metadata"]["labels"]["trainjob.dev/role"]: group_of(p) for p in world.pods}
    assert named == {"worker": world.group["metadata"]["name"], "evaluator": None}
    assert world.status.state == "Running"


async def test_the_group_comes_before_its_pods_and_the_evaluator_after_they_have_nodes() -> None:
    world = GangWorld()
    await world.settle()
    kinds = [write.split()[1] for write in world.cluster.writes if write.startswith("create")]
    assert kinds == ["Service", "PodGroup", "Pod", "Pod"]
    assert world.roles() == ["worker", "worker"]
    world.each(world.cluster.run_pod)
    await world.settle()
    assert world.roles() == ["evaluator", "worker", "worker"]


@pytest.mark.parametrize("reason", ["Unschedulable", "Schedulable"])
async def test_a_gang_that_gets_no_nodes_says_so_and_never_yields(reason: str, golden: Golden) -> None:
    world = GangWorld(build_gang_job(restartStrategy="Recreate", startTimeoutSeconds=60))
    await world.settle()
    world.reject(reason)
    await world.pass_time(3600)
    golden(world.status.message)
    assert (world.status.state, world.status.attempt, len(world.pods)) == ("Pending", 1, 2)
    world.cluster.hold_pod(world.pod("worker", 0), "ImagePullBackOff", "no such image")
    await world.pass_time(59)
    assert world.status.state == "Pending"
    await world.pass_time(2)  # now it holds a node, and another job may wait for that
    assert (world.status.state, world.status.attempt) == ("Restarting", 2)


async def test_a_gang_whose_pods_a_quota_refuses_yields() -> None:
    """The pods that are there use quota, and another job's may use the rest."""

    def refuse(operation: str, manifest: Manifest) -> Exception | None:
        is_last = operation == "create" and "-worker-1-" in manifest["metadata"]["name"]
        return Refused("Forbidden", "exceeded quota") if is_last else None

    world = GangWorld(build_gang_job(restartStrategy="Recreate", startTimeoutSeconds=60))
    world.cluster.fault = refuse
    await world.settle()
    assert world.roles() == ["worker"]
    await world.pass_time(62)
    assert world.status.state == "Restarting"


async def test_the_group_follows_the_jobs_size() -> None:
    world = await GangWorld(build_gang_job(worker={"replicas": 2})).started()
    world.edit(worker={"replicas": 3})
    await world.settle()
    assert world.group is not None
    assert world.group["spec"]["minMember"] == 3


@pytest.mark.parametrize("how", ["Complete", "Failed", "Suspended", "training is done"])
async def test_a_job_that_does_not_train_has_no_group(how: str) -> None:
    world = await GangWorld(build_gang_job(restartStrategy="Recreate", maxRestarts=0)).started()
    assert world.group is not None
    if how == "Suspended":
        world.edit(suspend=True)
    elif how == "training is done":
        world.each(lambda pod: world.cluster.end_pod(pod, 0), "worker")
    else:
        world.each(lambda pod: world.cluster.end_pod(pod, int(how == "Failed")))
    await world.settle()
    world.let_go()
    await world.settle()
    assert world.status.state == ("Evaluating" if how == "training is done" else how)
    assert world.group is None
    if how == "Suspended":
        world.edit(suspend=False)
        await world.settle()
        assert world.group is not None


async def test_a_restart_keeps_the_group_and_a_deleted_one_comes_back() -> None:
    world = await GangWorld().started()
    before = world.group
    world.cluster.end_pod(world.pod("worker"), 1)
    await world.settle()
    world.let_go()
    await world.pass_time(60)
    assert world.group == before is not None
    world.cluster.remove(before)
    await world.settle()
    assert world.group is not None
    assert all(
        LABEL in pod["metadata"]["labels"] for pod in world.pods if "-worker-" in pod["metadata"]["name"]
    )


async def test_a_group_that_could_not_be_created_is_created_for_its_pods() -> None:
    world = GangWorld()
    lost = [Unavailable("no answer")]

    def fail(_operation: str, manifest: Manifest) -> Exception | None:
        return lost.pop() if manifest["kind"] == "PodGroup" and lost else None

    world.cluster.fault = fail
    await world.settle()
    assert (lost, len(world.pods), world.group is None) == ([], 2, False)


async def test_a_job_that_runs_without_a_group_gets_one_with_its_next_attempt() -> None:
    world = await GangWorld(settings=Settings()).started()
    world.settings = BOTH
    world.restart_controller()
    await world.settle()
    assert world.group is None
    world.cluster.end_pod(world.pod("worker"), 1)
    await world.settle()
    world.let_go()
    await world.pass_time(60)
    assert world.group is not None
    assert LABEL in world.pod("worker")["metadata"]["labels"]


async def test_a_group_of_another_owner_holds_the_job_up(golden: Golden) -> None:
    world = GangWorld()
    name = pod_group_name("digits", world.cluster.job(world.key)["metadata"]["uid"])
    world.cluster.put({"kind": "PodGroup", "metadata": {"name": name, "namespace": "default"}})
    await world.settle()
    assert (world.status.state, world.pods) == ("Pending", [])
    golden(world.status.message)
