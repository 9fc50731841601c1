"""What failed, and what happens next: restarts of the worker group, on a cluster in memory."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from support.agents.tracebacks import MISTAKES, SYNTAX_ERROR, TYPE_ERROR, show
from support.golden import Golden
from support.world.jobs import build_job, build_plain_job
from support.world.world import World
from trainjob.core.actions import CreatePod
from trainjob.core.conditions import find_condition, is_true
from trainjob.core.names import Replica
from trainjob.core.observed import Snapshot, read_observed
from trainjob.core.settings import Bundle, Settings


async def test_a_crash_restarts_all_workers_from_the_checkpoint(golden: Golden) -> None:
    world = await World(build_plain_job()).started()
    evaluator = world.pod("evaluator")["metadata"]["name"]
    world.cluster.report(world.pod("worker", 0), {"step": 30, "checkpointStep": 20})
    world.cluster.report(world.pod("worker", 1), {"step": 30})
    world.cluster.end_pod(world.pod("worker", 1), 1, message="Traceback…\nValueError: boom")
    await world.settle()
    assert world.status.state == "Restarting"
    golden(world.status.message)
    assert world.status.attempt == 2
    assert world.status.restarts.counted == 1
    assert world.status.first_failure is not None
    assert world.status.first_failure.rank == "worker-1"
    assert world.status.first_failure.log_tail == "Traceback…\nValueError: boom"
    assert ("Restarting", world.status.message) in world.cluster.events
    assert len(world.pods) == 2, "the peer is still going: no successor before it has gone"
    world.let_go()
    await world.settle()
    incarnations = [p["metadata"]["labels"]["trainjob.dev/incarnation"] for p in world.pods]
    assert sorted(incarnations) == ["1", "2", "2"]
    assert world.pod("evaluator")["metadata"]["name"] == evaluator
    world.each(world.cluster.run_pod, "worker")
    await world.settle()
    assert world.status.state == "Running"
    assert not is_true(world.status, "Restarting")


async def test_restarts_end_at_the_budget(golden: Golden) -> None:
    world = await World(build_plain_job(maxRestarts=1, evaluator=False)).started()
    world.cluster.report(world.pod("worker", 0), {"step": 10, "checkpointStep": 10})
    world.cluster.end_pod(world.pod("worker", 0), 137, reason="OOMKilled")
    await world.settle()
    world.let_go()
    await world.started()
    assert world.status.state == "Running"
    world.cluster.report(world.pod("worker", 0), {"step": 14, "checkpointStep": 10})
    world.cluster.end_pod(world.pod("worker", 0), 137, reason="OOMKilled")
    await world.settle()
    assert world.status.state == "Failing"
    world.let_go()
    await world.settle()
    assert world.status.state == "Failed"
    golden(world.status.message)
    failed = find_condition(world.status, "Failed")
    assert failed is not None
    assert failed.reason == "OutOfMemory"
    assert len(world.pods) == 1, "the failed pod stays for its log"


@pytest.mark.parametrize(
    ("code", "reason"), [(80, "InvalidConfiguration"), (81, "OutputFinished"), (87, "CheckpointMismatch")]
)
async def test_what_a_restart_cannot_fix_fails_at_once(code: int, reason: str) -> None:
    world = await World(build_plain_job()).started()
    world.cluster.end_pod(world.pod("worker", 0), code, message="the reason")
    await world.settle()
    world.let_go()
    await world.settle()
    assert world.status.state == "Failed"
    assert world.status.restarts.counted == 0
    failed = find_condition(world.status, "Failed")
    assert failed is not None
    assert failed.reason == reason
    assert "the reason" in failed.message


@pytest.mark.parametrize("others", ["still there", "ended as well"])
@pytest.mark.parametrize("build", [build_job, build_plain_job])
async def test_a_job_from_a_backup_adopts_its_finished_output(
    build: Callable[..., dict[str, Any]], others: str, golden: Golden
) -> None:
    restored = {"labels": {"velero.io/restore-name": "nightly"}}
    world = await World(build(metadata=restored)).started()
    world.cluster.end_pod(world.pod("worker", 0), 81, message="holds a training that finished at step 9")
    if others == "ended as well":
        world.cluster.end_pod(world.pod("worker", 1), 81)
    await world.settle()
    assert world.status.state == "Evaluating"
    assert len(world.pods) == 3, "no attempt is begun"
    world.let_go()
    world.cluster.end_pod(world.pod("evaluator"), 0)
    await world.settle()
    assert world.status.state == "Complete"
    golden(world.status.message)
    assert world.status.restarts.counted == world.status.restarts.not_counted == 0


WITH_A_PROGRAM = Settings(bundle=Bundle(b"program", b"key"))


async def test_a_job_created_again_after_its_end_is_complete_at_once(golden: Golden) -> None:
    world = await World(build_plain_job(), settings=WITH_A_PROGRAM).started()
    report = '{"state": "finished", "step": 9, "alreadyFinished": true}'
    world.each(lambda pod: world.cluster.end_pod(pod, 0, message=report), "worker")
    await world.settle()
    world.cluster.end_pod(world.pod("evaluator"), 0)
    await world.settle()
    assert world.status.state == "Complete"
    golden(world.status.message)


def spec_of_pod(settings: Settings | None = WITH_A_PROGRAM, **job: Any) -> str:
    observed = read_observed(Snapshot(build_plain_job(**job)), settings)
    pod = CreatePod(
        observed.effective_job, Replica("worker", 0), 1, 1, spec_digest=observed.spec_digest
    ).build()
    env = {v["name"]: v.get("value", "") for v in pod["spec"]["containers"][0]["env"]}
    return env.get("TRAINJOB_SPEC", "")


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"uid": "another"}, True),
        ({"workers": 3}, True),
        ({"ttlSecondsAfterFinished": 5}, True),
        ({"activeDeadlineSeconds": 900}, True),
        ({"suspend": True}, True),
        ({"maxRestarts": 3}, True),  # the default
        ({"maxRestarts": 4}, False),
        ({"container": {"args": ["--epochs", "9"]}}, False),
        ({"container": {"image": "acme/digits:2"}}, False),
        ({"pod": {"nodeSelector": {"pool": "a"}}}, False),
        ({"output": {"claim": {"claimName": "another"}}}, False),
        ({"evaluator": False}, False),
    ],
)
def test_a_spec_is_known_by_what_can_not_change_in_it(change: dict[str, Any], is_same: bool) -> None:
    assert spec_of_pod()
    assert (spec_of_pod(**change) == spec_of_pod()) is is_same


def test_on_one_machine_a_program_may_change_under_the_same_spec() -> None:
    assert not spec_of_pod(settings=None)


async def test_the_culprit_is_named_not_the_peer_that_saw_it_go() -> None:
    world = await World(build_plain_job()).started()
    world.cluster.end_pod(world.pod("worker", 0), 85, message="peer gone")
    again = await world.settle()
    assert world.status.attempt == 1, "the culprit may show up yet"
    assert again is not None
    world.cluster.end_pod(world.pod("worker", 1), 1, message="ValueError: boom")
    await world.settle()
    assert world.status.first_failure is not None
    assert world.status.first_failure.rank == "worker-1"
    assert world.status.restarts.counted == 1


async def test_a_lost_peer_alone_restarts_after_a_while() -> None:
    world = await World(build_plain_job()).started()
    world.cluster.end_pod(world.pod("worker", 0), 85)
    await world.pass_time(11)
    assert world.status.attempt == 2
    assert (world.status.restarts.counted, world.status.restarts.not_counted) == (0, 1)


@pytest.mark.parametrize("way", ["evict_pod", "remove"])
async def test_a_pod_deleted_by_the_cluster_is_uncounted(way: str) -> None:
    world = await World(build_plain_job(maxRestarts=0)).started()
    getattr(world.cluster, way)(world.pod("worker", 1))
    await world.settle()
    world.let_go()
    await world.settle()
    assert world.status.attempt == 2
    assert (world.status.restarts.counted, world.status.restarts.not_counted) == (0, 1)


async def waits_after_crashes(steps: list[int]) -> list[int]:
    """Crash one worker after each of these steps; return the seconds until its successor is there."""
    world = World(build_plain_job(maxRestarts=10, evaluator=False, workers=1))
    waits = []
    for step in steps:
        await world.started()
        world.cluster.report(world.pod("worker"), {"step": step})
        world.cluster.end_pod(world.pod("worker"), 1)
        await world.settle()
        waits.append(0)
        while not world.pods:
            await world.pass_time(1)
            waits[-1] += 1
    return waits


async def test_failures_without_progress_wait_longer_each_time() -> None:
    assert await waits_after_crashes([5, 5, 4, 5, 4]) == [0, 1, 2, 4, 8]


async def test_progress_resets_the_wait() -> None:
    assert await waits_after_crashes([10, 20, 20, 30]) == [0, 0, 1, 0]


@pytest.mark.parametrize(("code", "log"), MISTAKES)
async def test_a_mistake_ends_the_first_attempt_at_once(code: int, log: str, golden: Golden) -> None:
    world = await World(build_plain_job(evaluator=False)).started()
    world.cluster.end_pod(world.pod("worker", 1), code, message=log)
    await world.settle()
    assert world.status.state == "Failing"
    assert world.status.restarts.counted == 0
    golden(world.status.message)


@pytest.mark.parametrize("step", [1, 30])
async def test_a_mistake_after_a_step_is_tried_again(step: int) -> None:
    world = await World(build_plain_job(evaluator=False)).started()
    world.cluster.report(world.pod("worker", 1), {"step": step})
    world.cluster.end_pod(world.pod("worker", 1), 1, message=TYPE_ERROR)
    await world.settle()
    assert world.status.state == "Restarting"


async def fail_again(world: World, index: int, log: str, seconds: float) -> None:
    """A worker's process fails so long after all have started."""
    world.let_go()
    await world.started()
    world.now += timedelta(seconds=seconds)
    world.cluster.end_pod(world.pod("worker", index), 1, message=log)
    await world.settle()


@pytest.mark.parametrize(
    ("logs", "seconds", "state"),
    [
        ([show("ValueError: boom")] * 2, 5.0, "Failing"),
        ([show("RuntimeError: boom")] * 2, 5.0, "Restarting"),
        ([show("RuntimeError: boom")] * 3, 5.0, "Failing"),
        ([show("RuntimeError: boom")] * 3, 60.0, "Restarting"),
        ([show("ValueError: boom"), show("ValueError: boom", "train.py:4")] * 2, 5.0, "Restarting"),
        ([show("ValueError: boom"), SYNTAX_ERROR, SYNTAX_ERROR], 5.0, "Restarting"),
    ],
)
async def test_the_same_exception_is_the_same_failure_whichever_replica_was_first(
    logs: list[str], seconds: float, state: str
) -> None:
    world = World(build_plain_job(evaluator=False, maxRestarts=9))
    for number, log in enumerate(logs):
        await fail_again(world, number % 2, log, seconds)
        await world.pass_time(60)
    assert world.status.state == state
