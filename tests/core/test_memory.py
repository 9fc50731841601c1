"""The workers' memory after out-of-memory kills: raised in living pods, or by larger ones."""

from __future__ import annotations

from typing import Any

import pytest

from support.golden import Golden
from support.world.agents import Agents, training
from support.world.jobs import build_job, build_plain_job
from support.world.world import World
from trainjob.api import InvalidTrainJob, parse
from trainjob.cluster import Refused
from trainjob.core.memory import bytes_of, limit_of, next_limit, raised_resources, with_limit
from trainjob.core.settings import Settings

GI = 1024**3
ASKED: dict[str, Any] = {"limits": {"memory": "8Gi"}, "requests": {"memory": "4Gi", "cpu": "2"}}


def growing_job(bound: str = "16Gi", **changes: Any) -> dict[str, Any]:
    build = build_plain_job if changes.get("restartStrategy") == "Recreate" else build_job
    worker = {"replicas": 2, "maxAllowed": {"memory": bound}}
    return build(**{"container": {"resources": ASKED}, "worker": worker, **changes})


def resources_of(pod: dict[str, Any]) -> dict[str, Any]:
    resources: dict[str, Any] = pod["spec"]["containers"][0]["resources"]
    return resources


def killed_for_memory(agents: Agents, replica: str = "worker-1", *, step: int = 30, **more: Any) -> None:
    target = agents.world.cluster.targets[agents.world.key]
    assert target is not None
    agents.fail(replica, code=137, reason="OutOfMemory", step=step, counted=not target["memoryGrows"], **more)


async def trains_again(world: World, agents: Agents) -> None:
    agents.meet()
    await world.settle()
    assert world.status.state == "Running"


@pytest.mark.parametrize(
    ("quantity", "size"),
    [
        ("8Gi", 8 * GI),
        ("0.5Gi", GI // 2),
        ("1500M", 1_500_000_000),
        ("12e6", 12_000_000),
        ("128974848000m", 128_974_848),
        ("1024", 1024),
        ("1e99", 2**63 - 1),
        ("", None),
        ("8 Gi", None),
        ("8GiB", None),
        ("1.2.3", None),
        (".", None),
    ],
)
def test_quantities(quantity: str, size: int | None) -> None:
    assert bytes_of(quantity) == size


@pytest.mark.parametrize(
    ("limit", "bound", "expected"),
    [
        ("8Gi", "32Gi", "12Gi"),
        ("12Gi", "32Gi", "18Gi"),
        ("24Gi", "32Gi", "32Gi"),
        ("1Gi", "16Gi", "1536Mi"),
        ("8G", "9G", "9G"),
        ("8Gi", "8Gi", None),
        ("1", "2", "2"),
    ],
)
def test_the_next_limit_is_half_more_up_to_the_bound(limit: str, bound: str, expected: str | None) -> None:
    job = growing_job(bound, container={"resources": {"limits": {"memory": limit}}})
    assert next_limit(parse(job)) == expected


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"limits": {"memory": "8Gi"}}, {"limits": {"memory": "12Gi"}}),
        (ASKED, {"limits": {"memory": "12Gi"}, "requests": {"memory": "6Gi", "cpu": "2"}}),
        (
            {"limits": {"memory": "8Gi", "cpu": 2}, "requests": {"memory": "8192Mi", "cpu": 2}},
            {"limits": {"memory": "12Gi", "cpu": 2}, "requests": {"memory": "12Gi", "cpu": 2}},
        ),
    ],
)
def test_the_request_keeps_its_share_so_that_the_class_of_the_pod_stays(
    resources: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert raised_resources(resources, "12Gi") == expected


def test_the_worker_role_s_own_resources_are_raised() -> None:
    worker = {"replicas": 1, "resources": {"limits": {"memory": "4Gi"}}, "maxAllowed": {"memory": "8Gi"}}
    job = parse(build_job(container={"resources": ASKED}, worker=worker))
    assert limit_of(job) == "4Gi"
    assert limit_of(with_limit(job, "6Gi")) == "6Gi"


@pytest.mark.parametrize(
    ("container", "bound", "problem"),
    [
        ({}, "8Gi", "there is no limit to raise"),
        ({"resources": {"requests": {"memory": "8Gi"}}}, "8Gi", "there is no limit to raise"),
        ({"resources": ASKED}, "4Gi", 'is less than the workers\' memory limit, "8Gi"'),
        ({"resources": ASKED}, "much", "must be a quantity above zero"),
        ({"resources": ASKED}, "-1Gi", "must be a quantity above zero"),
    ],
)
def test_a_bound_needs_a_limit_below_it(container: dict[str, Any], bound: str, problem: str) -> None:
    with pytest.raises(InvalidTrainJob) as refused:
        parse(growing_job(bound, container=container))
    (error,) = refused.value.errors
    assert error.path == "spec.worker.maxAllowed.memory"
    assert problem in error.message


async def test_all_workers_are_resized_in_their_living_pods(golden: Golden) -> None:
    world, agents = await training(growing_job())
    before = [pod["metadata"]["name"] for pod in world.pods]
    agents.report("worker-0", step=30, checkpointStep=20)
    killed_for_memory(agents)
    await world.settle()
    golden(world.status.message)
    assert ("Restarted", world.status.message) in world.cluster.events
    assert world.status.worker is not None
    assert world.status.worker.memory == "12Gi"
    assert [pod["metadata"]["name"] for pod in world.pods] == before
    for index in (0, 1):
        resized = resources_of(world.pod("worker", index))
        assert resized == {"limits": {"memory": "12Gi"}, "requests": {"memory": "6Gi", "cpu": "2"}}
    assert resources_of(world.pod("evaluator")) == ASKED
    world.each(lambda pod: world.cluster.resize_pod(pod, "12Gi"), "worker")
    await trains_again(world, agents)
    golden(world.status.message)
    assert (world.status.restarts.counted, world.status.restarts.not_counted) == (0, 1)
    await world.pass_time(120)
    assert [pod["metadata"]["name"] for pod in world.pods] == before


async def test_a_pod_that_was_killed_is_replaced_by_a_larger_one_and_the_others_grow(golden: Golden) -> None:
    world, agents = await training(growing_job())
    world.cluster.end_pod(world.pod("worker", 1), 137, reason="OOMKilled")
    await world.settle()
    golden(world.status.message)
    assert [resources_of(world.pod("worker", i))["limits"]["memory"] for i in (0, 1)] == ["12Gi", "12Gi"]
    assert world.pod("worker", 0)["metadata"]["labels"]["trainjob.dev/incarnation"] == "1"
    assert world.pod("worker", 1)["metadata"]["labels"]["trainjob.dev/incarnation"] == "2"
    assert (world.status.restarts.counted, world.status.restarts.not_counted) == (0, 1)
    agents.phase = "meeting"
    world.each(world.cluster.run_pod, "worker")
    await trains_again(world, agents)


@pytest.mark.parametrize("reason", ["Deferred", "Infeasible"])
async def test_a_pod_without_room_on_its_node_is_replaced(reason: str, golden: Golden) -> None:
    world, agents = await training(growing_job())
    killed_for_memory(agents)
    await world.settle()
    await trains_again(world, agents)
    world.cluster.resize_pod(world.pod("worker", 0), "12Gi")
    world.cluster.resize_pod(world.pod("worker", 1), "8Gi")
    world.cluster.refuse_resize(world.pod("worker", 1), reason, "Node didn't have enough resource: memory")
    await world.settle()
    golden(world.status.message)
    assert ("PodOutgrown", world.status.message) in world.cluster.events
    world.let_go()
    await world.settle()
    kept, made = (world.pod("worker", index) for index in (0, 1))
    assert kept["metadata"]["labels"]["trainjob.dev/incarnation"] == "1"
    assert int(made["metadata"]["labels"]["trainjob.dev/incarnation"]) > 1
    assert resources_of(made)["limits"]["memory"] == "12Gi"
    assert world.status.restarts.counted == 0
    agents.phase = "meeting"
    world.each(world.cluster.run_pod, "worker")
    world.cluster.resize_pod(world.pod("worker", 0), "12Gi")
    await trains_again(world, agents)


@pytest.mark.parametrize("answer", ["refused", "silence"])
async def test_where_pods_are_not_resized_they_are_replaced_once(answer: str, golden: Golden) -> None:
    world, agents = await training(growing_job())
    if answer == "refused":
        refusal = Refused("Invalid", "no such subresource")
        world.cluster.fault = lambda operation, _manifest: refusal if operation == "patch" else None
    killed_for_memory(agents)
    await world.settle()
    for pod in world.pods:
        world.cluster.resize_pod(pod, "8Gi")
    await trains_again(world, agents)
    await world.pass_time(29)
    assert world.pod("worker", 0)["metadata"]["labels"]["trainjob.dev/incarnation"] == "1"
    await world.pass_time(2)
    golden(world.status.message)
    world.let_go()
    await world.settle()
    world.each(world.cluster.run_pod, "worker")
    world.each(lambda pod: world.cluster.resize_pod(pod, "8Gi"), "worker")  # something changes new pods
    agents.phase = "meeting"
    await trains_again(world, agents)
    names = [pod["metadata"]["name"] for pod in world.pods]
    await world.pass_time(300)
    assert [pod["metadata"]["name"] for pod in world.pods] == names


async def test_kills_count_once_the_bound_is_reached(golden: Golden) -> None:
    world, agents = await training(growing_job("10Gi", maxRestarts=1))
    for number, memory in enumerate(["10Gi", "10Gi"]):
        killed_for_memory(agents, step=30 + number)
        await world.settle()
        golden(world.status.message)
        world.each(lambda pod: world.cluster.resize_pod(pod, memory), "worker")  # noqa: B023
        await trains_again(world, agents)
    assert (world.status.restarts.counted, world.status.restarts.not_counted) == (1, 1)


async def test_a_kill_before_the_raise_has_reached_its_pod_raises_no_further() -> None:
    world, agents = await training(growing_job("64Gi"))
    world.each(lambda pod: world.cluster.resize_pod(pod, "8Gi"), "worker")
    for _ in range(3):
        killed_for_memory(agents)
        await world.settle()
    assert world.status.worker is not None
    assert world.status.worker.memory == "12Gi"
    assert world.status.restarts.counted == 0


@pytest.mark.parametrize(
    ("limit", "had", "memory"),
    [
        ("8Gi", 8 * GI, "12Gi"),
        ("8Gi", 12 * GI, "18Gi"),
        ("8Gi", None, "18Gi"),
        ("8G", 8_000_000_000, "11444Mi"),
        ("8G", 11444 * 1024**2, "17166Mi"),
    ],
)
async def test_a_kill_counts_for_the_memory_that_the_container_had_then(
    limit: str, had: int | None, memory: str
) -> None:
    """The pod may be resized before the controller learns of the kill."""
    world, agents = await training(
        growing_job("64Gi", container={"resources": {"limits": {"memory": limit}}})
    )
    killed_for_memory(agents, memory=(bytes_of(limit) or 0) // 4096 * 4096)  # the kernel's, in whole pages
    await world.settle()
    raised = resources_of(world.pod("worker"))["limits"]["memory"]
    world.each(lambda pod: world.cluster.resize_pod(pod, raised), "worker")
    await trains_again(world, agents)
    killed_for_memory(agents, memory=had)
    await world.settle()
    assert world.status.worker is not None
    assert world.status.worker.memory == memory
    assert world.status.restarts.counted == 0


async def test_without_agents_all_pods_come_back_larger(golden: Golden) -> None:
    world = await World(growing_job(restartStrategy="Recreate", evaluator=False)).started()
    world.cluster.end_pod(world.pod("worker", 0), 137, reason="OOMKilled")
    await world.settle()
    golden(world.status.message)
    world.let_go()
    await world.started()
    assert world.status.state == "Running"
    assert [resources_of(world.pod("worker", i))["limits"]["memory"] for i in (0, 1)] == ["12Gi", "12Gi"]
    assert (world.status.restarts.counted, world.status.restarts.not_counted) == (0, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"worker": {"replicas": 2}},
        {"worker": {"replicas": 2}, "container": {}},
        {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "gpu"}}},
    ],
    ids=["no-bound", "no-limit", "queue"],
)
async def test_otherwise_a_kill_counts_and_says_what_to_do(changes: dict[str, Any], golden: Golden) -> None:
    world, agents = await training(growing_job(**changes))
    killed_for_memory(agents)
    await world.settle()
    golden(world.status.message)
    assert world.status.worker is not None
    assert world.status.worker.memory == ""
    assert world.status.restarts.counted == 1


async def test_where_no_limit_is_enforced_none_is_raised() -> None:
    world = World(growing_job(), Settings(limits_memory=False))
    agents = Agents(world)
    await world.started()
    agents.meet()
    await world.settle()
    killed_for_memory(agents)
    await world.settle()
    assert world.status.restarts.counted == 1
    assert "memory grow" not in (world.status.message or "")
    assert "raised" not in (world.status.message or "")


@pytest.mark.parametrize("replica", ["ps-0", "chief-0"])
async def test_other_roles_do_not_grow(replica: str) -> None:
    world, agents = await training(growing_job(ps={"replicas": 1}, chief={"replicas": 1}))
    agents.fail(replica, code=137, reason="OutOfMemory", step=3)
    await world.settle()
    assert world.status.worker is not None
    assert world.status.worker.memory == ""
    assert world.status.restarts.counted == 1
