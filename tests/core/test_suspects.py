"""Workers whose weights have come apart from the others': on which node, and whether it is suspect."""

from __future__ import annotations

import pytest

from support.world.agents import Agents, training
from support.world.jobs import build_job, build_plain_job
from support.world.world import World
from trainjob.core.stragglers import MOST, SUSPECT_REASON, named_replicas
from trainjob_trainer import WeightsDiverged
from trainjob_trainer.distribution.divergence import Apart, describe

ENDING = "they are not saved, and training goes back to the last checkpoint"
ONE = f"worker-1's weights differ from the others' at step 30 (variable a); {ENDING}"
BOTH = f"worker-0's and worker-1's weights differ from each other's at step 30 (variable a); {ENDING}"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (ONE, ["worker-1"]),
        (BOTH, ["worker-0", "worker-1"]),
        (f"found its weights apart from the others' (exit code 91: {ONE})", ["worker-1"]),
        (f"trainjob: worker-1: WeightsDiverged: {ONE}", ["worker-1"]),
        ("chief-0's, worker-0's and worker-12's weights differ", ["chief-0", "worker-0", "worker-12"]),
        (
            "worker-0's, worker-1's, worker-2's, worker-3's and 6 more workers' weights differ from each",
            ["worker-0", "worker-1", "worker-2", "worker-3"],
        ),
        ("worker-1's loss differs", []),
        ("", []),
    ],
)
def test_whose_weights_they_are_stands_in_the_sentence(text: str, names: list[str]) -> None:
    assert [replica.name for replica in named_replicas(text)] == names


async def diverge(world: World, agents: Agents, message: str, step: int, replica: str = "worker-1") -> str:
    """Their weights come apart, training starts again, and this is the event's sentence."""
    agents.fail(replica, code=91, reason="WeightsDiverged", message=message, step=step)
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


SAID = f"worker 1 on node gpu-7 found its weights apart from the others' (exit code 91: {ONE})"


async def test_the_event_names_worker_and_node_and_the_same_node_twice_is_suspect() -> None:
    world, agents = await training(build_job(workers=3, evaluator=False))
    place(world, "gpu-5", "gpu-7", "gpu-9")
    assert await diverge(world, agents, ONE, 30) == (
        f"{SAID} at step 30; restarted in place (restart 1 of 3)"
    )
    assert world.status.restarts.diverged_nodes == ("gpu-7",)
    assert await diverge(world, agents, ONE, 50) == (
        f"{SAID} at step 50; node gpu-7 has had this before: it is suspect, cordon it; "
        "restarted in place (restart 2 of 3)"
    )
    assert world.status.restarts.diverged_nodes == ("gpu-7",)


async def test_another_node_is_not_suspect() -> None:
    world, agents = await training(build_job(workers=3, evaluator=False))
    place(world, "gpu-5", "gpu-7", "gpu-9")
    await diverge(world, agents, ONE, 30)
    said = await diverge(world, agents, ONE.replace("worker-1", "worker-2"), 50, "worker-2")
    assert "suspect" not in said
    assert world.status.restarts.diverged_nodes == ("gpu-7", "gpu-9")


async def test_of_two_workers_both_are_named_with_their_nodes_and_one_is_suspect() -> None:
    world, agents = await training(build_job(evaluator=False))
    place(world, "gpu-5", "gpu-7")
    said = SAID.replace(ONE, BOTH)
    assert await diverge(world, agents, BOTH, 30) == (
        f"{said} at step 30; worker 0 is on node gpu-5; restarted in place (restart 1 of 3)"
    )
    assert await diverge(world, agents, BOTH, 50) == (
        f"{said} at step 50; worker 0 is on node gpu-5; "
        "nodes gpu-5 and gpu-7 have had this before: one of them is suspect; "
        "restarted in place (restart 2 of 3)"
    )


async def test_without_agents_it_is_the_same() -> None:
    world = await World(build_plain_job(workers=3, evaluator=False)).started()
    for step in (30, 50):
        place(world, "gpu-5", "gpu-7", "gpu-9")
        world.cluster.end_pod(
            world.pod("worker", 0), 85, message="trainjob: worker-0: PeerLost: lost worker-1"
        )
        world.cluster.end_pod(
            world.pod("worker", 1), 91, message=f"trainjob: worker-1: WeightsDiverged: {ONE}"
        )
        await world.settle()
        assert world.status.first_failure is not None
        said = world.status.first_failure.message
        assert said.startswith(
            "worker 1 on node gpu-7 found its weights apart from the others' (exit code 91"
        )
        assert ("it is suspect" in said) is (step == 50)
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


@pytest.mark.parametrize(
    ("ranks", "is_certain"), [([1], True), ([0, 2], True), ([0, 1], False), ([0, 1, 2], False)]
)
def test_the_trainers_own_sentence_is_read(ranks: list[int], is_certain: bool) -> None:
    workers = [f"worker-{rank}" for rank in range(3 if is_certain else len(ranks))]
    sentence = describe(Apart(ranks, is_certain=is_certain), workers, ["dense/kernel"], 12)
    assert [replica.name for replica in named_replicas(sentence)] == [workers[rank] for rank in ranks]
    assert WeightsDiverged.reason == SUSPECT_REASON
