"""Jobs with agents: what the controller does, and what it leaves to them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.golden import Golden
from support.world.agents import Agents, training
from support.world.jobs import build_job
from support.world.world import World
from trainjob.core.conditions import find_condition, is_true


def names_of(world: World, role: str = "worker") -> list[str]:
    return [p["metadata"]["name"] for p in world.pods if p["metadata"]["labels"]["trainjob.dev/role"] == role]


def target_of(world: World) -> dict[str, Any]:
    target = world.cluster.targets[world.key]
    assert target is not None
    return dict(target)


async def test_a_job_runs_once_its_agents_have_met() -> None:
    world = World(build_job())
    agents = Agents(world)
    await world.settle()
    world.each(world.cluster.run_pod)
    agents.tell()
    await world.settle()
    assert world.status.state == "Pending"
    agents.meet()
    await world.settle()
    assert world.status.state == "Running"
    assert world.status.attempt == 1
    assert target_of(world)["world"] == {"worker": 2}
    assert target_of(world)["incarnations"] == {"worker-0": 1, "worker-1": 1}


async def test_where_agents_cannot_be_asked_running_pods_are_what_is_known() -> None:
    world = World(build_job())
    await world.settle()
    world.each(world.cluster.run_pod)
    await world.settle()
    assert world.status.state == "Pending"
    await world.pass_time(20)
    assert world.status.state == "Running"


async def test_a_controller_without_a_report_yet_leaves_a_running_job_as_it_is() -> None:
    world, _ = await training(build_job())
    world.cluster.forget_answers()
    before = list(world.cluster.writes)
    world.restart_controller()
    await world.settle()
    assert world.cluster.writes == before


async def test_a_restart_by_agents_is_reported_and_touches_no_pod(golden: Golden) -> None:
    world, agents = await training(build_job())
    before = names_of(world)
    agents.report("worker-0", step=30, checkpointStep=20)
    agents.fail("worker-1", message="ValueError: boom", logTail="Traceback…\nValueError: boom", step=30)
    await world.settle()
    assert world.status.state == "Restarting"
    golden(world.status.message)
    assert ("Restarted", world.status.message) in world.cluster.events
    assert world.status.first_failure is not None
    assert world.status.first_failure.rank == "worker-1"
    assert world.status.first_failure.pod == world.pod("worker", 1)["metadata"]["name"]
    assert world.status.first_failure.log_tail == "Traceback…\nValueError: boom"
    agents.meet()
    await world.settle()
    assert world.status.state == "Running"
    assert (world.status.attempt, world.status.restarts.counted) == (2, 1)
    assert names_of(world) == before


@pytest.mark.parametrize("state", ["training", "saving", "starting", "preparing"])
async def test_a_replica_that_waits_for_storage_is_shown(state: str, golden: Golden) -> None:
    world, agents = await training(build_job())
    away = "cannot write /output/checkpoints: Stale file handle"
    agents.report("worker-0", state=state, step=30, waitingForStorage=away)
    await world.settle()
    assert world.status.state == "Waiting for storage"
    golden(world.status.message)
    assert ("WaitingForStorage", world.status.message) in world.cluster.events
    running = find_condition(world.status, "Running")
    assert running is not None
    assert (running.status, running.reason) == ("True", "WaitingForStorage")
    agents.report("worker-0", state=state, step=31)
    await world.settle()
    assert world.status.state == "Running"
    golden(world.status.message)


@pytest.mark.parametrize(("code", "reason"), [(83, "OutputFull"), (92, "StorageUnavailable")])
async def test_storage_that_is_away_is_waited_for_as_often_as_it_takes(
    code: int, reason: str, golden: Golden
) -> None:
    world, agents = await training(build_job(maxRestarts=1))
    for number in range(1, 8):
        agents.fail("worker-0", code=code, reason=reason, message="/data: away", step=8, counted=False)
        await world.settle()
        assert world.status.state == "Waiting for storage"
        agents.meet()
        await world.settle()
        assert world.status.state == "Running"
        assert (world.status.restarts.counted, world.status.restarts.not_counted) == (0, number)
    golden(dict(world.cluster.events)["Restarted"])


async def test_the_time_of_an_outage_counts_as_training_or_as_a_restart() -> None:
    world, agents = await training(build_job())
    before = world.status.state_seconds
    agents.report("worker-0", state="training", step=30, waitingForStorage="/output is away")
    await world.settle()
    await world.pass_time(40)
    agents.fail("worker-0", code=92, reason="StorageUnavailable", step=30, counted=False)
    await world.settle()
    assert world.status.state_seconds.training - before.training >= 40
    await world.pass_time(50)
    agents.meet()
    await world.settle()
    assert world.status.state == "Running"
    assert world.status.state_seconds.restarting - before.restarting >= 50


async def test_a_restart_that_is_over_before_its_report_is_still_recorded(golden: Golden) -> None:
    world, agents = await training(build_job())
    agents.fail("worker-0", code=137, reason="OutOfMemory", step=7)
    agents.meet()
    await world.settle()
    assert world.status.state == "Running"
    assert world.status.restarts.counted == 1
    assert world.status.first_failure is not None
    assert world.status.first_failure.reason == "OutOfMemory"
    golden(world.status.first_failure.message)


async def test_a_lost_pod_is_replaced_alone(golden: Golden) -> None:
    world, agents = await training(build_job())
    kept, lost = names_of(world)
    world.cluster.end_pod(world.pod("worker", 1), 137, reason="OOMKilled")
    await world.settle()
    golden(world.status.message)
    assert world.status.attempt == 2
    now = names_of(world)
    assert kept in now
    assert lost not in now
    assert len(now) == 2
    assert target_of(world)["incarnations"] == {"worker-0": 1, "worker-1": 2}
    agents.phase = "meeting"
    world.each(world.cluster.run_pod, "worker")
    agents.meet()
    await world.settle()
    assert world.status.state == "Running"
    assert world.status.restarts.counted == 1


@pytest.mark.parametrize("end", ["fails", "is deleted", "is evicted", "vanishes"])
async def test_who_is_lost_after_the_leading_agent_has_finished_restarts_nothing(end: str) -> None:
    world, agents = await training(build_job(evaluator=False))
    agents.report("worker-0", step=40, checkpointStep=40)
    world.cluster.end_pod(world.pod("worker", 0), 0)
    ends = {
        "fails": lambda pod: world.cluster.end_pod(pod, 1),
        "is deleted": world.cluster.ask_to_end,
        "is evicted": world.cluster.evict_pod,
        "vanishes": world.cluster.remove,
    }
    ends[end](world.pod("worker", 1))
    await world.settle()
    world.let_go()
    await world.settle()
    assert world.status.state == "Complete"
    assert world.status.attempt == 1


async def test_a_pod_that_comes_too_late_for_the_leading_agent_does_not_keep_the_job_open() -> None:
    world, _ = await training(build_job(evaluator=False))
    world.cluster.evict_pod(world.pod("worker", 1))
    await world.settle()
    world.cluster.end_pod(world.pod("worker", 0), 0)
    world.each(lambda pod: world.cluster.run_pod(pod) if pod["status"]["phase"] == "Pending" else None)
    await world.settle()
    assert world.status.state != "Complete"
    await world.pass_time(60)
    world.let_go()
    await world.settle()
    assert world.status.state == "Complete"


async def test_failures_one_after_the_other_each_count() -> None:
    world, agents = await training(build_job())
    for number in (1, 2):
        world.cluster.end_pod(world.pod("worker", number - 1), 137, reason="OOMKilled")
        agents.phase = "meeting"
        await world.pass_time(60)
        world.each(lambda p: world.cluster.run_pod(p) if p["status"]["phase"] == "Pending" else None)
        agents.meet()
        await world.settle()
        assert world.status.state == "Running"
        assert world.status.restarts.counted == number


@pytest.mark.parametrize("way", ["evict_pod", "remove"])
async def test_a_pod_deleted_by_the_cluster_is_uncounted(way: str) -> None:
    world, _ = await training(build_job(maxRestarts=0))
    kept = names_of(world)[0]
    getattr(world.cluster, way)(world.pod("worker", 1))
    await world.settle()
    assert kept in names_of(world)
    assert len(names_of(world)) == 2
    assert (world.status.restarts.counted, world.status.restarts.not_counted) == (0, 1)


@pytest.mark.parametrize("saved", [{}, {"checkpointStep": 30}])
async def test_training_that_is_saved_now_does_not_restart_from_the_beginning(
    saved: dict[str, int], golden: Golden
) -> None:
    world, agents = await training(build_job())
    agents.report("worker-0", step=40, **saved)
    world.cluster.ask_to_end(world.pod("worker", 1))
    await world.settle()
    golden(world.status.message)


async def test_a_controller_that_dies_after_its_decision_does_not_count_twice() -> None:
    world, _ = await training(build_job())
    cut = {"left": 1}

    def die(operation: str, manifest: dict[str, Any]) -> Exception | None:
        if operation in ("set_labels", "delete") and cut["left"]:
            cut["left"] -= 1
            return ConnectionError("the controller is gone")
        return None

    world.cluster.fault = die
    world.cluster.end_pod(world.pod("worker", 0), 1)
    world.cluster.end_pod(world.pod("worker", 1), 1)
    with pytest.raises(ConnectionError):
        await world.settle()
    world.restart_controller()
    await world.settle()
    assert world.status.attempt == 2
    assert world.status.restarts.counted == 1
    assert len(names_of(world)) == 2


async def test_what_the_agents_give_up_fails_the_job(golden: Golden) -> None:
    world, agents = await training(build_job(maxRestarts=1, evaluator=False))
    agents.report("worker-0", step=4210, checkpointStep=4200)
    agents.fail("worker-1", message="ValueError: boom", step=4205)
    agents.meet()
    await world.settle()
    agents.fail("worker-1", message="ValueError: boom", step=4210, checkpointStep=4200)
    agents.counted = 1
    words = json.dumps(agents.words())
    world.cluster.end_pod(world.pod("worker", 0), 85, message=words)
    world.cluster.end_pod(world.pod("worker", 1), 1, message=words)
    await world.settle()
    assert world.status.state == "Failed"
    golden(world.status.message)
    assert world.status.first_failure is not None
    assert world.status.first_failure.rank == "worker-1"


@pytest.mark.parametrize("more", [{"exitCode": 80, "reason": "InvalidConfiguration"}, {"repeated": True}])
async def test_why_the_agents_gave_up(more: dict[str, Any], golden: Golden) -> None:
    world, agents = await training(build_job(evaluator=False))
    agents.fail("worker-1", **more)
    words = json.dumps(agents.words())
    for index in (1, 0):
        world.cluster.end_pod(world.pod("worker", index), 85, message=words)
    await world.settle()
    assert world.status.state == "Failed"
    golden(world.status.message)


async def test_what_an_agent_says_is_permanent_is(golden: Golden) -> None:
    """Its table of exit codes may be of a later version."""
    world, agents = await training(build_job(evaluator=False))
    agents.fail("worker-1", code=79, reason="Hopeless", permanent=True)
    words = json.dumps(agents.words())
    for index in (1, 0):
        world.cluster.end_pod(world.pod("worker", index), 85, message=words)
    await world.settle()
    golden(world.status.message)


def gone_without_a_controller(world: World, agents: Agents, restarts: int) -> None:
    """The agents restart training so often, and then their pods end, while no controller runs."""
    for number in range(restarts):
        agents.fail("worker-1", message="boom", step=10 + number)
        agents.meet()
    world.cluster.forget_answers()
    world.restart_controller()


async def test_the_budget_holds_while_the_controller_and_the_leading_pod_are_gone() -> None:
    world, agents = await training(build_job(maxRestarts=3, evaluator=False))
    gone_without_a_controller(world, agents, 2)
    words = json.dumps({**agents.words(gave_up=False), "failure": None})
    world.cluster.end_pod(world.pod("worker", 0), 86, message=words)
    world.cluster.end_pod(world.pod("worker", 1), 86, message=words)
    await world.settle()
    restarts = world.status.restarts
    assert (restarts.counted, restarts.not_counted, world.status.attempt) == (2, 1, 4)
    assert target_of(world)["restarts"]["counted"] == 2


async def test_restarts_without_a_report_are_counted_in_a_job_that_has_failed(golden: Golden) -> None:
    world, agents = await training(build_job(maxRestarts=2, evaluator=False))
    gone_without_a_controller(world, agents, 2)
    agents.counted -= 1  # giving up is no restart
    agents.fail("worker-1", message="boom", step=12)
    world.cluster.forget_answers()
    words = json.dumps(agents.words())
    for index in (1, 0):
        world.cluster.end_pod(world.pod("worker", index), 85, message=words)
    await world.settle()
    assert world.status.state == "Failed"
    golden(world.status.message)
    assert world.status.restarts.counted == 2


async def test_agents_that_have_given_up_end_by_themselves_and_keep_their_logs() -> None:
    world, agents = await training(build_job(evaluator=False))
    before = names_of(world)
    agents.fail("worker-1", repeated=True)
    words = json.dumps(agents.words())
    world.cluster.end_pod(world.pod("worker", 0), 85, message=words)
    await world.settle()
    assert (world.status.state, names_of(world)) == ("Failing", before)
    world.cluster.end_pod(world.pod("worker", 1), 1, message=words)
    await world.settle()
    assert (world.status.state, names_of(world)) == ("Failed", before)


async def test_agents_that_have_given_up_and_stay_are_stopped() -> None:
    world, agents = await training(build_job(evaluator=False))
    agents.fail("worker-1", repeated=True)
    world.cluster.end_pod(world.pod("worker", 0), 85, message=json.dumps(agents.words()))
    await world.pass_time(9)
    assert "deletionTimestamp" not in world.pod("worker", 1)["metadata"]
    await world.pass_time(2)
    assert "deletionTimestamp" in world.pod("worker", 1)["metadata"]


@pytest.mark.parametrize(
    "failure",
    [
        {"reason": "Stalled", "message": "no progress for 3 s"},
        {"reason": "Unreachable", "message": "can't be reached"},
        {"reason": "Unreachable", "message": ""},
    ],
)
async def test_what_agents_say_of_a_process_that_did_not_end(failure: dict[str, Any], golden: Golden) -> None:
    world, agents = await training(build_job())
    agents.fail("worker-1", **{"exitCode": None, "step": 40, **failure})
    await world.settle()
    golden(world.status.message)


async def test_a_worker_that_is_unreachable_is_replaced_after_its_grace_period(golden: Golden) -> None:
    world, agents = await training(build_job(evaluator=False))
    await world.pass_time(60)
    gone = world.pod("worker", 1)["metadata"]["name"]
    agents.lost["worker-1"] = 5.0
    agents.phase = "meeting"
    agents.tell()
    await world.settle()
    assert world.status.attempt == 1, "it may come back"
    agents.lost["worker-1"] = 11.0
    agents.tell()
    await world.settle()
    golden(world.status.message)
    assert world.status.restarts.not_counted == 1
    assert names_of(world).count(gone) == 1, "its node may still run it"
    await world.pass_time(39)
    assert len(names_of(world)) == 2
    await world.pass_time(2)
    assert len(names_of(world)) == 3
    agents.lost.clear()
    world.each(lambda p: world.cluster.run_pod(p) if p["status"]["phase"] == "Pending" else None)
    agents.meet()
    await world.settle()
    assert world.status.state == "Running"


async def test_a_leading_agent_that_is_unreachable_is_replaced(golden: Golden) -> None:
    world, agents = await training(build_job(evaluator=False))
    await world.pass_time(60)
    agents.unreachable, agents.witness = 12.0, {"leaderLostSeconds": 3.0}
    agents.tell()
    await world.settle()
    assert world.status.attempt == 1
    agents.unreachable, agents.witness = 20.0, {"leaderLostSeconds": 11.0}
    agents.tell()
    await world.settle()
    golden(world.status.message)
    assert world.status.attempt == 2
    await world.pass_time(41)
    world.each(lambda p: world.cluster.run_pod(p) if p["status"]["phase"] == "Pending" else None)
    await world.pass_time(5)
    assert world.status.attempt == 2, "its successor has only just begun"


async def test_workers_whose_end_was_cut_off_start_once_more() -> None:
    """The others have ended because training is done; the leader's pod was lost just then."""
    world, agents = await training(build_job(evaluator=False))
    world.cluster.end_pod(world.pod("worker", 1), 0)
    world.cluster.evict_pod(world.pod("worker", 0))
    agents.phase = "meeting"
    await world.settle()
    assert len(names_of(world)) == 2
    assert all(p["status"]["phase"] == "Pending" for p in world.pods)


async def test_scaling_keeps_the_pods_that_stay(golden: Golden) -> None:
    world, agents = await training(build_job(workers=3, evaluator=False))
    before = names_of(world)
    world.edit(worker={"replicas": 2})
    await world.settle()
    assert world.status.state == "Restarting"
    assert target_of(world)["world"] == {"worker": 2}
    world.let_go()
    agents.phase = "meeting"
    agents.meet()
    await world.settle()
    assert names_of(world) == before[:2]
    assert world.status.state == "Running"
    golden(world.status.message)
    world.edit(worker={"replicas": 3})
    await world.settle()
    assert names_of(world)[:2] == before[:2]
    assert len(names_of(world)) == 3
    assert target_of(world)["world"] == {"worker": 3}
    assert world.status.restarts.counted == 0


async def test_suspending_and_going_on() -> None:
    world, agents = await training(build_job(evaluator=False))
    agents.fail("worker-0", step=3)
    agents.meet()
    await world.settle()
    world.edit(suspend=True)
    await world.settle()
    assert world.cluster.targets[world.key] is None
    world.let_go()
    await world.settle()
    world.edit(suspend=False)
    await world.settle()
    assert len(names_of(world)) == 2
    world.each(world.cluster.run_pod, "worker")
    agents.meet()
    await world.settle()
    assert world.status.state == "Running"
    assert world.status.restarts.counted == 1
    assert world.status.attempt == 3


async def test_progress_of_all_comes_from_the_leading_agent() -> None:
    world, agents = await training(build_job())
    agents.report("worker-0", step=30, totalSteps=100, checkpointStep=20)
    await world.pass_time(31)
    assert world.status.progress is not None
    assert world.status.progress.step == 30
    assert world.status.output is not None
    assert world.status.output.checkpoint_step == 20


async def test_restart_counts_are_reset_by_a_checkpoint_further_than_ever() -> None:
    world, agents = await training(build_job(maxRestarts=1, evaluator=False))
    world.cluster.end_pod(world.pod("worker", 1), 1, message="boom")
    agents.report("worker-0", step=12, checkpointStep=10)
    await world.settle()
    world.each(lambda p: world.cluster.run_pod(p) if p["status"]["phase"] == "Pending" else None)
    agents.meet()
    await world.settle()
    assert world.status.restarts.counted == 1
    agents.report("worker-0", step=35, checkpointStep=30)
    agents.report("worker-1", step=35)
    world.cluster.end_pod(world.pod("worker", 1), 1, message="boom")
    await world.settle()
    assert world.status.state == "Restarting"
    assert (world.status.restarts.counted, world.status.restarts.reset) == (1, 1)


async def test_workers_that_cannot_all_start_in_time_yield_and_try_again(golden: Golden) -> None:
    world = World(build_job(startTimeoutSeconds=60, evaluator=False))
    agents = Agents(world)
    await world.settle()
    first = names_of(world)
    world.cluster.run_pod(world.pod("worker", 0))
    world.cluster.hold_pod(world.pod("worker", 1), "Unschedulable", "no room")
    agents.tell()
    await world.pass_time(59)
    assert names_of(world) == first
    await world.pass_time(1)
    golden(world.status.message)
    assert is_true(world.status, "Restarting")
    running = find_condition(world.status, "Running")
    assert running is not None
    assert running.reason == "StartTimeout"
    world.let_go()
    await world.settle()
    assert names_of(world) == []
    await world.pass_time(60)
    assert len(names_of(world)) == 2
    assert set(names_of(world)).isdisjoint(first)
    assert (world.status.restarts.counted, world.status.restarts.not_counted) == (0, 1)


async def hold(world: World, agents: Agents, index: int) -> None:
    """A worker is lost, and its successor can't be had."""
    world.cluster.evict_pod(world.pod("worker", index))
    agents.phase = "meeting"
    await world.settle()
    world.cluster.hold_pod(world.pod("worker", index), "Unschedulable", "no room")
    agents.tell()
    await world.settle()


async def test_training_continues_with_fewer_workers_and_grows_back(golden: Golden) -> None:
    world, agents = await training(build_job(worker={"replicas": 4, "minReplicas": 2}, evaluator=False))
    await hold(world, agents, 2)
    await world.pass_time(59)
    assert world.status.state == "Restarting"
    await world.pass_time(1)
    assert target_of(world)["without"] == ["worker-2"]
    golden(world.status.message)
    agents.meet(without=["worker-2"])
    await world.settle()
    assert world.status.state == "Running"
    golden(world.status.message)
    assert world.source["spec"]["worker"]["replicas"] == 4, "the spec is the user's"
    world.cluster.run_pod(world.pod("worker", 2))
    agents.tell()
    await world.settle()
    assert target_of(world)["without"] == []
    agents.meet()
    await world.settle()
    golden(world.status.message)
    assert world.status.restarts.counted == 0


async def test_no_fewer_than_the_global_batch_can_be_divided_by() -> None:
    world, agents = await training(build_job(worker={"replicas": 4, "minReplicas": 1}, evaluator=False))
    agents.report("worker-0", step=1, globalBatch=64)
    await world.pass_time(31)
    await hold(world, agents, 1)
    await world.pass_time(61)
    assert target_of(world)["without"] == ["worker-1", "worker-3"]


async def test_no_fewer_than_are_wanted() -> None:
    world, agents = await training(build_job(worker={"replicas": 2, "minReplicas": 2}, evaluator=False))
    await hold(world, agents, 1)
    await world.pass_time(120)
    assert target_of(world)["without"] == []


async def test_a_size_that_the_global_batch_cannot_be_divided_by_is_refused(golden: Golden) -> None:
    world, agents = await training(build_job(evaluator=False))
    agents.report("worker-0", step=1, globalBatch=64)
    await world.pass_time(31)
    before = names_of(world)
    world.edit(worker={"replicas": 3})
    await world.pass_time(31)
    assert world.status.state == "Running"
    golden(world.status.message)
    assert names_of(world) == before
    assert world.status.observed_generation == 2
    world.edit(worker={"replicas": 4})
    await world.settle()
    assert target_of(world)["world"] == {"worker": 4}
