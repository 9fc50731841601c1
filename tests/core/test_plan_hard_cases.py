"""The life of a job where it is hard: clocks that differ, worlds that change, messages without end."""

from __future__ import annotations

from datetime import timedelta

from support.golden import Golden
from support.world.jobs import build_plain_job
from support.world.world import World
from trainjob.core.conditions import find_condition, is_true


async def test_a_larger_world_is_no_lost_pod(golden: Golden) -> None:
    world = await World(build_plain_job()).started()
    world.edit(worker={"replicas": 3})
    await world.settle()
    golden(world.status.message)
    assert world.status.first_failure is None
    assert world.status.restarts.not_counted == 0


async def test_a_world_that_cannot_be_read_is_not_resized_for_ever() -> None:
    world = await World(build_plain_job()).started()
    for pod in world.pods:
        pod["spec"]["containers"][0]["env"] = []
    await world.settle()
    assert world.status.attempt == 1


async def test_a_missing_pod_is_named_before_the_peer_that_lost_it() -> None:
    world = await World(build_plain_job()).started()
    world.cluster.remove(world.pod("worker", 1))
    world.cluster.end_pod(world.pod("worker", 0), 85)
    await world.settle()
    assert world.status.first_failure is not None
    assert world.status.first_failure.rank == "worker-1"


async def test_a_time_in_the_future_is_not_waited_for() -> None:
    """A node's clock, or that of the controller before, may be hours ahead."""
    world = await World(build_plain_job(workers=2)).started()
    world.now += timedelta(hours=1)
    world.cluster.end_pod(world.pod("worker", 0), 85)
    world.cluster.report(world.pod("worker", 0), {"step": 5})
    world.now -= timedelta(hours=1)
    await world.pass_time(11)
    assert world.status.attempt == 2


async def failed_three_times() -> World:
    """Return the world of a job whose worker has failed three times: its next start is delayed."""
    world = await World(build_plain_job(workers=1, evaluator=False, maxRestarts=9)).started()
    for _ in range(2):
        world.cluster.end_pod(world.pod("worker"), 1)
        await world.settle()
        await world.pass_time(1)
        await world.started()
    world.cluster.end_pod(world.pod("worker"), 1)
    await world.settle()
    return world


async def test_a_clock_that_is_set_back_holds_up_no_restart() -> None:
    world = await failed_three_times()
    world.now -= timedelta(hours=1)
    await world.pass_time(5)
    assert world.pods != []


async def test_training_that_has_finished_is_not_undone_by_a_server_that_fails() -> None:
    world = await World(build_plain_job(chief={}, ps={"replicas": 1}, evaluator=False)).started()
    world.cluster.end_pod(world.pod("chief"), 0)
    world.cluster.end_pod(world.pod("ps"), 1)
    await world.settle()
    world.let_go()
    await world.settle()
    assert world.status.state == "Complete"


async def test_a_deadline_does_not_undo_what_was_trained() -> None:
    world = await World(build_plain_job(activeDeadlineSeconds=60)).started()
    world.each(lambda pod: world.cluster.end_pod(pod, 0), "worker")
    await world.pass_time(90)
    assert world.status.state == "Evaluating"


async def test_a_deadline_does_not_count_the_time_of_a_suspension() -> None:
    world = await World(build_plain_job(activeDeadlineSeconds=60)).started()
    world.edit(suspend=True)
    await world.settle()
    world.let_go()
    await world.pass_time(3600)
    world.edit(suspend=False)
    await world.started()
    assert world.status.state == "Running"
    await world.pass_time(60)
    world.let_go()
    await world.settle()
    assert world.status.state == "Failed"


async def test_reasons_that_take_turns_are_not_written_each_time(golden: Golden) -> None:
    world = World(build_plain_job())
    await world.settle()
    before = len(world.cluster.writes)
    for second in range(60):
        reason = ("ErrImagePull", "ImagePullBackOff")[second % 2]
        world.cluster.hold_pod(world.pod("worker", 1), reason, f"try {second}")
        await world.pass_time(1)
    assert len(world.cluster.writes) - before <= 3
    golden(world.status.message)


async def test_an_obstacle_that_is_gone_is_no_longer_reported() -> None:
    world = await World(build_plain_job(evaluator=False)).started()
    world.cluster.end_pod(world.pod("worker", 0), 1)
    await world.settle()
    world.let_go()
    await world.settle()
    world.cluster.hold_pod(world.pod("worker", 0), "ImagePullBackOff", "no such image")
    await world.settle()
    world.cluster.hold_pod(world.pod("worker", 0), "ContainerCreating", "")
    await world.settle()
    assert "no such image" not in (world.status.message or "")


async def test_sentences_stay_short_and_printable() -> None:
    world = await World(build_plain_job(maxRestarts=0)).started()
    world.cluster.end_pod(world.pod("worker", 0), 1, message="\x1b[31m\x00" + "ü" * 5000)
    await world.settle()
    message = world.status.message or ""
    assert len(message.encode()) <= 1024
    assert message.isprintable()
    assert world.status.first_failure is not None
    assert "\x1b" not in world.status.first_failure.log_tail


async def test_a_spec_with_many_errors_is_reported_in_a_sentence() -> None:
    world = World(build_plain_job(**{f"unknown{i}": i for i in range(1000)}))
    await world.settle()
    assert world.status.state == "Failed"
    assert len((world.status.message or "").encode()) <= 1024
    assert "more" in (world.status.message or "")


async def test_a_new_controller_writes_nothing_to_a_running_job() -> None:
    world = await World(build_plain_job()).started()
    report = {
        "step": 3,
        "totalSteps": 9,
        "examplesPerSecond": "nan",
        "metrics": {"a": 1.5},
        "checkpointStep": 2,
    }
    world.cluster.report(world.pod("worker"), report)
    await world.pass_time(31)
    before = list(world.cluster.writes)
    world.restart_controller()
    await world.pass_time(300)
    assert world.cluster.writes == before


async def test_a_job_that_is_now_invalid_reports_why_and_keeps_its_pods(golden: Golden) -> None:
    """It was stored before a container without a command was refused, and has been running since."""
    world = await World(build_plain_job(evaluator=False)).started()
    before = [pod["metadata"]["name"] for pod in world.pods]
    world.edit(restartStrategy="InPlace")
    del world.cluster.job(world.key)["spec"]["template"]["spec"]["containers"][0]["command"]
    await world.settle()
    message = world.status.message or ""
    assert message.startswith("spec.template.spec.containers[0].command: ")
    golden(message)
    assert world.status.state == "Running"
    assert world.cluster.events[-1] == ("InvalidSpec", message)
    running = find_condition(world.status, "Running")
    assert running is not None
    assert (running.status, running.reason) == ("True", "InvalidSpec")
    written = list(world.cluster.writes)
    await world.pass_time(3600)
    assert world.cluster.writes == written
    assert [pod["metadata"]["name"] for pod in world.pods] == before
    world.each(lambda pod: world.cluster.end_pod(pod, 0))
    await world.settle()
    assert world.status.state == "Failed"


async def test_a_damaged_status_does_not_stop_a_job() -> None:
    world = World(build_plain_job())
    world.cluster.job(world.key)["status"] = {"progress": "lost"}
    await world.started()
    assert world.status.state == "Running"


async def test_a_pod_that_does_not_end_is_named(golden: Golden) -> None:
    world = await World(build_plain_job(pod={"terminationGracePeriodSeconds": 300})).started()
    world.cluster.end_pod(world.pod("worker", 0), 1)
    await world.settle()
    before = world.status.message
    await world.pass_time(59)
    assert world.status.message == before
    await world.pass_time(1)
    golden(world.status.message)
    assert world.status.state == "Restarting"
    world.let_go()
    await world.started()
    assert world.status.state == "Running"


async def test_suspended_while_it_waits_to_restart() -> None:
    world = await failed_three_times()
    world.edit(suspend=True, worker={"replicas": 2})
    await world.pass_time(100)
    assert world.pods == []
    assert is_true(world.status, "Suspended")
    world.edit(suspend=False)
    await world.started()
    assert world.status.worker is not None
    assert (world.status.state, world.status.worker.summary) == ("Running", "2/2")
    assert world.status.restarts.counted == 3


async def test_resized_while_it_restarts() -> None:
    world = await World(build_plain_job(evaluator=False)).started()
    world.cluster.end_pod(world.pod("worker", 0), 1)
    await world.settle()
    world.edit(worker={"replicas": 1})
    await world.settle()
    world.let_go()
    await world.started()
    assert world.status.worker is not None
    assert (world.status.attempt, world.status.worker.summary) == (2, "1/1")


async def test_a_process_that_left_on_request_has_not_finished() -> None:
    """A script may well answer SIGTERM with exit code 0."""
    world = await World(build_plain_job(workers=1, evaluator=False)).started()
    pod = world.pod("worker")
    world.cluster.end_pod(pod, 0)
    pod["metadata"]["deletionTimestamp"] = world.now.isoformat()
    await world.settle()
    assert world.status.attempt == 2
    assert world.status.restarts.not_counted == 1


async def test_progress_is_shown_again_after_the_clock_was_set_back() -> None:
    world = await World(build_plain_job(evaluator=False)).started()
    world.now -= timedelta(hours=1)
    world.cluster.report(world.pod("worker"), {"step": 7})
    await world.settle()
    assert world.status.progress is not None
    assert world.status.progress.step == 7
