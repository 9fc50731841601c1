"""Workers whose weights have come apart from the others': on which node, and whether it is suspect."""

from __future__ import annotations

from collections.abc import Sequence

from support.golden import Golden
from support.world.agents import Agents, training
from support.world.jobs import build_job, build_plain_job
from support.world.world import World
from trainjob.core.stragglers import MOST, SUSPECT_REASON

ENDING = "they are not saved, and training goes back to the last checkpoint"
ONE = f"worker-1's weights differ from the others' at step 30 (variable a); {ENDING}"
BOTH = f"worker-0's and worker-1's weights differ from each other's at step 30 (variable a); {ENDING}"


async def diverge(
    world: World,
    agents: Agents,
    message: str,
    step: int,
    replica: str = "worker-1",
    replicas: Sequence[str] = (),
) -> str:
    """Their weights come apart, training starts again, and this is the event's sentence."""
    agents.fail(replica, code=91, reason=SUSPECT_REASON, message=message, step=step, replicas=list(replicas))
    await world.settle()
    agents.meet()
    await world.settle()
    assert world.status.state == "Running"
    assert world.status.first_failure is not None
    said = world.status.first_failure.message
    assert ("Restarted", said) in world.cluster.events
    return said


def place(world: World, *nodes: str) -> None:
    for index, node in enumerate(nodes):
        world.pod("worker", index)["spec"]["nodeName"] = node


async def test_the_event_names_worker_and_node_and_the_same_node_twice_is_suspect(golden: Golden) -> None:
    world, agents = await training(build_job(workers=3, evaluator=False))
    place(world, "gpu-5", "gpu-7", "gpu-9")
    golden(await diverge(world, agents, ONE, 30))
    assert world.status.restarts.diverged_nodes == ("gpu-7",)
    golden(await diverge(world, agents, ONE, 50))
    assert world.status.restarts.diverged_nodes == ("gpu-7",)


async def test_another_node_is_not_suspect() -> None:
    world, agents = await training(build_job(workers=3, evaluator=False))
    place(world, "gpu-5", "gpu-7", "gpu-9")
    await diverge(world, agents, ONE, 30)
    said = await diverge(world, agents, ONE.replace("worker-1", "worker-2"), 50, "worker-2")
    assert "suspect" not in said
    assert world.status.restarts.diverged_nodes == ("gpu-7", "gpu-9")


async def test_of_two_workers_both_are_named_with_their_nodes_and_one_is_suspect(golden: Golden) -> None:
    world, agents = await training(build_job(evaluator=False))
    place(world, "gpu-5", "gpu-7")
    for step in (30, 50):
        golden(await diverge(world, agents, BOTH, step, replicas=["worker-0", "worker-1"]))


async def test_without_agents_it_is_the_same(golden: Golden) -> None:
    world = await World(build_plain_job(workers=3, evaluator=False)).started()
    for _ in range(2):
        place(world, "gpu-5", "gpu-7", "gpu-9")
        world.cluster.end_pod(
            world.pod("worker", 0), 85, message="trainjob: worker-0: PeerLost: lost worker-1"
        )
        world.cluster.end_pod(
            world.pod("worker", 1), 91, message=f"trainjob: worker-1: WeightsDiverged: {ONE}"
        )
        await world.settle()
        assert world.status.first_failure is not None
        golden(world.status.first_failure.message)
        world.let_go()
        await world.pass_time(60)
        world.each(lambda p: world.cluster.run_pod(p) if p["status"]["phase"] == "Pending" else None)
        await world.settle()


async def test_where_there_are_no_nodes_nothing_is_remembered() -> None:
    world, agents = await training(build_job(workers=3, evaluator=False))
    for step in (30, 50):
        said = await diverge(world, agents, ONE, step)
        assert "suspect" not in said
    assert world.status.restarts.diverged_nodes == ()


async def test_the_status_keeps_few_nodes() -> None:
    world, agents = await training(build_job(workers=3, evaluator=False, maxRestarts=50))
    for number in range(MOST + 2):
        place(world, "gpu-5", f"node-{number}", "gpu-9")
        await diverge(world, agents, ONE, 30 + number)
    known = world.status.restarts.diverged_nodes
    assert (len(known), known[-1]) == (MOST, f"node-{MOST + 1}")


async def test_other_failures_are_not_remembered() -> None:
    world, agents = await training(build_job(workers=3, evaluator=False))
    place(world, "gpu-5", "gpu-7", "gpu-9")
    agents.fail("worker-1", message=ONE, step=30)
    await world.settle()
    assert world.status.restarts.diverged_nodes == ()
