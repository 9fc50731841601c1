"""Nodes that are lost: their pods are replaced elsewhere before Kubernetes has noticed."""

from __future__ import annotations

from typing import Any

import pytest

from support.golden import Golden
from support.world.agents import Agents, training
from support.world.jobs import build_job
from support.world.world import World
from trainjob.api import parse
from trainjob.core.manifests import build_pod

AVOIDED = "trainjob.dev/avoided-nodes"
HOSTS = {("worker", 0): "n0", ("worker", 1): "n1", ("evaluator", 0): "n2"}


async def trains(hosts: dict[tuple[str, int], str] = HOSTS, **spec: Any) -> tuple[World, Agents]:
    """A job that has trained for a minute, its pods on these nodes."""
    world, agents = await training(build_job(**spec))
    for (role, index), node in hosts.items():
        world.cluster.at_node(world.pod(role, index), node)
    await world.pass_time(60)
    return world, agents


async def lose(world: World, agents: Agents, *replicas: str) -> None:
    """The leading agent has not heard of these for too long."""
    agents.lost |= dict.fromkeys(replicas, 11.0)
    agents.phase = "meeting"
    agents.tell()
    await world.settle()


async def lose_leader(world: World, agents: Agents) -> None:
    agents.unreachable, agents.witness = 20.0, {"leaderLostSeconds": 11.0}
    agents.tell()
    await world.settle()


def pods_of(world: World, replica: str) -> list[dict[str, Any]]:
    """All pods of this replica, the newest last."""
    role, _, index = replica.rpartition("-")
    wanted = {"trainjob.dev/role": role, "trainjob.dev/index": index}
    pods = [p for p in world.pods if wanted.items() <= p["metadata"]["labels"].items()]
    return sorted(pods, key=lambda p: int(p["metadata"]["labels"]["trainjob.dev/incarnation"]))


def avoided(pod: dict[str, Any]) -> str:
    text: str = (pod["metadata"].get("annotations") or {}).get(AVOIDED, "")
    return text


async def test_a_lost_worker_is_replaced_at_once_and_elsewhere(golden: Golden) -> None:
    world, agents = await trains()
    await lose(world, agents, "worker-1")
    golden(world.status.message)
    old, new = pods_of(world, "worker-1")
    assert "deletionTimestamp" in old["metadata"]
    assert (avoided(old), avoided(new)) == ("", "n1")
    assert len(pods_of(world, "worker-0")) == 1
    assert (world.status.restarts.counted, world.status.restarts.not_counted) == (0, 1)


async def test_so_is_the_leading_agents(golden: Golden) -> None:
    world, agents = await trains()
    await lose_leader(world, agents)
    golden(world.status.message)
    assert [avoided(pod) for pod in pods_of(world, "worker-0")] == ["", "n0"]
    assert len(pods_of(world, "worker-1")) == 1


@pytest.mark.parametrize(("reported", "saved"), [(40, 30), (28, 30)])
async def test_a_lost_worker_had_reached_the_newest_checkpoint(
    reported: int, saved: int, golden: Golden
) -> None:
    world, agents = await trains()
    agents.report("worker-0", step=40, checkpointStep=saved)
    agents.report("worker-1", step=reported)
    await lose(world, agents, "worker-1")
    golden(world.status.message)


async def test_a_new_leading_agent_misses_who_was_lost_with_the_one_before() -> None:
    world, agents = await trains({("worker", 0): "n0", ("worker", 1): "n0", ("evaluator", 0): "n2"})
    await lose_leader(world, agents)
    agents.unreachable, agents.witness = 0.0, None
    world.cluster.run_pod(pods_of(world, "worker-0")[1])
    agents.lost["worker-1"], agents.state_of_lost = 5.0, "absent"
    agents.phase = "meeting"
    agents.tell()
    await world.settle()
    assert len(pods_of(world, "worker-1")) == 1, "it may still join"
    await lose(world, agents, "worker-1")
    await world.pass_time(2)  # the second restart without progress
    assert [avoided(pod) for pod in pods_of(world, "worker-1")] == ["", "n0"]


async def test_who_never_joined_from_another_node_is_waited_for() -> None:
    world, agents = await trains()
    await lose_leader(world, agents)
    agents.unreachable, agents.witness = 0.0, None
    world.cluster.run_pod(pods_of(world, "worker-0")[1])
    agents.state_of_lost = "absent"
    await lose(world, agents, "worker-1")
    assert len(pods_of(world, "worker-1")) == 1


@pytest.mark.parametrize("max_restarts", [0, 3])
async def test_a_lost_evaluator_is_replaced_alone_and_uncounted(max_restarts: int, golden: Golden) -> None:
    world, agents = await trains(maxRestarts=max_restarts)
    agents.lost["evaluator-0"] = 11.0
    agents.tell()
    await world.settle()
    assert [avoided(pod) for pod in pods_of(world, "evaluator-0")] == ["", "n2"]
    golden(dict(world.cluster.events)["EvaluatorRestarted"])
    assert world.status.state == "Running"
    assert len(pods_of(world, "worker-0")) == len(pods_of(world, "worker-1")) == 1


@pytest.mark.parametrize("replica", ["worker-1", "evaluator-0"])
async def test_a_pod_without_a_node_may_use_one_that_is_back(replica: str) -> None:
    world, agents = await trains()
    await lose(world, agents, replica)
    old, waiting = pods_of(world, replica)
    agents.lost.clear()
    agents.tell()
    await world.settle()
    assert pods_of(world, replica) == [old, waiting], "its node hasn't reported the old pod's end"
    world.cluster.end_pod(old, 143)
    await world.settle()
    world.let_go()
    await world.settle()
    (pod,) = pods_of(world, replica)
    assert avoided(pod) == ""


async def test_a_connection_that_was_lost_for_a_moment_condemns_no_node() -> None:
    world, agents = await trains()
    agents.fail("worker-1", code=1, reason="Unreachable", exitCode=None, counted=False)
    agents.meet()
    await world.settle()
    world.cluster.end_pod(world.pod("worker", 0), 137, reason="OOMKilled")
    await world.settle()
    assert [avoided(pod) for pod in pods_of(world, "worker-0")] == [""]


async def finish(world: World) -> None:
    for pod in world.pods:
        if "deletionTimestamp" not in pod["metadata"]:
            world.cluster.end_pod(pod, 0)


async def give_up(world: World) -> None:
    world.edit(activeDeadlineSeconds=1)


async def suspend(world: World) -> None:
    world.edit(suspend=True)


ENDS = {"Complete": finish, "Failed": give_up, "Suspended": suspend}


@pytest.mark.parametrize("state", ENDS)
async def test_a_job_ends_although_nobody_reports_the_end_of_a_lost_pod(state: str) -> None:
    world, agents = await trains()
    await lose(world, agents, "worker-1")
    old, new = pods_of(world, "worker-1")
    world.cluster.run_pod(new)
    agents.lost.clear()
    agents.meet()
    await world.settle()
    await ENDS[state](world)
    await world.settle()
    for pod in world.pods:
        if pod["metadata"]["name"] != old["metadata"]["name"] and "deletionTimestamp" in pod["metadata"]:
            world.cluster.end_pod(pod, 143)
    await world.settle()
    assert world.status.state == state
    assert old["metadata"]["name"] in [pod["metadata"]["name"] for pod in world.pods]


@pytest.mark.parametrize("state", ["Failed", "Suspended"])
async def test_a_pod_that_is_lost_while_it_ends_is_waited_for_as_long_as_its_grace_period(state: str) -> None:
    world, _ = await trains()
    await ENDS[state](world)
    await world.settle()
    for pod in (*pods_of(world, "worker-0"), *pods_of(world, "evaluator-0")):
        world.cluster.end_pod(pod, 143)
    await world.pass_time(39)
    assert (state, "True") not in conditions(world)
    await world.pass_time(2)
    assert (state, "True") in conditions(world)


def conditions(world: World) -> list[tuple[str, str]]:
    return [(condition.type, condition.status) for condition in world.status.conditions]


OURS = {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}
THEIRS = {"key": "metadata.name", "operator": "NotIn", "values": ["n7"]}
ZONES = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("terms", "merged"),
    [
        ([], [{"matchFields": [OURS]}]),
        (ZONES, [{**zone, "matchFields": [OURS]} for zone in ZONES]),
        ([{"matchFields": [THEIRS]}], [{"matchFields": [THEIRS, OURS]}]),
    ],
)
def test_a_node_is_avoided_beside_the_users_own_affinity(
    terms: list[dict[str, Any]], merged: list[dict[str, Any]]
) -> None:
    preferred = [{"weight": 1, "preference": ZONES[0]}]
    node_affinity: dict[str, Any] = {"preferred": preferred}
    if terms:
        node_affinity[REQUIRED] = {"nodeSelectorTerms": terms}
    theirs = {"nodeAffinity": node_affinity, "podAntiAffinity": {"some": "rules"}}
    job = parse(build_job(worker={"replicas": 2, "affinity": theirs}))
    built = [
        build_pod(job, role="worker", index=1, incarnation=2, attempt=2, avoided=nodes)["spec"]["affinity"]
        for nodes in (["n1"], [])
    ]
    expected = {"preferred": preferred, REQUIRED: {"nodeSelectorTerms": merged}}
    assert built == [{**theirs, "nodeAffinity": expected}, theirs]
