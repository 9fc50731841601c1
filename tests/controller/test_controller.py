from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from support.world.fake_cluster import FakeCluster
from support.world.jobs import build_plain_job
from trainjob.cluster import JobKey, NotFound, Refused, Unavailable
from trainjob.controller import Controller


class Kubelet:
    """Runs every pod of a fake cluster at once, and ends it well, or as a test says."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.exit_codes: dict[str, int] = {}
        cluster.watch(self.act)

    def act(self, key: JobKey) -> None:
        asyncio.get_running_loop().call_soon(self.work, key)

    def work(self, key: JobKey) -> None:
        for pod in self.cluster.pods(key):
            phase = pod["status"]["phase"]
            if "deletionTimestamp" in pod["metadata"] and phase in ("Pending", "Running"):
                self.cluster.end_pod(pod, 143)
            elif phase == "Pending":
                self.cluster.run_pod(pod)
            elif phase == "Running" and len(self.cluster.pods(key)) == 3:
                self.cluster.end_pod(pod, 0)


def build_cluster() -> FakeCluster:
    return FakeCluster(lambda: datetime.now(UTC))


async def test_a_job_runs_to_its_end() -> None:
    cluster = build_cluster()
    Kubelet(cluster)
    controller = Controller(cluster)
    key = cluster.apply(build_plain_job())
    status = await asyncio.wait_for(controller.run_until_finished(key), 30)
    assert status.state == "Complete"


async def test_many_jobs_run_beside_each_other() -> None:
    cluster = build_cluster()
    Kubelet(cluster)
    controller = Controller(cluster, workers=3)
    running = asyncio.create_task(controller.run())
    keys = [cluster.apply(build_plain_job(name=f"job-{i}")) for i in range(20)]
    done = asyncio.Event()

    def look(_key: JobKey) -> None:
        if all(cluster.job(key).get("status", {}).get("state") == "Complete" for key in keys):
            done.set()

    cluster.watch(look)
    await asyncio.wait_for(done.wait(), 30)
    running.cancel()


async def test_what_goes_wrong_with_one_job_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster = build_cluster()
    Kubelet(cluster)
    controller = Controller(cluster)
    faults = [Unavailable("no answer"), ValueError("a defect"), Unavailable("wait", retry_after=0.01)]

    def fault(_operation: str, _manifest: dict[str, Any]) -> Exception | None:
        return faults.pop() if faults else None

    cluster.fault = fault
    key = cluster.apply(build_plain_job())
    with caplog.at_level(logging.WARNING):
        status = await asyncio.wait_for(controller.run_until_finished(key), 30)
    assert status.state == "Complete"
    assert faults == []
    assert "a defect" in caplog.text
    assert "default/digits: no answer; trying again in" in caplog.text


async def test_a_status_that_is_refused_is_one_line_and_an_event(caplog: pytest.LogCaptureFixture) -> None:
    cluster = build_cluster()
    Kubelet(cluster)
    controller = Controller(cluster)
    words = 'TrainJob.trainjob.dev "digits" is invalid: status.state: Too long'
    faults = [Refused("Invalid", words)]

    def fault(operation: str, _manifest: dict[str, Any]) -> Exception | None:
        return faults.pop() if faults and operation == "write_status" else None

    cluster.fault = fault
    key = cluster.apply(build_plain_job())
    with caplog.at_level(logging.WARNING):
        status = await asyncio.wait_for(controller.run_until_finished(key), 30)
    assert status.state == "Complete", "it is tried again"
    (line,) = (record for record in caplog.records if words in record.getMessage())
    assert line.exc_info is None
    assert line.levelno == logging.ERROR
    assert ("Refused", f"the cluster refuses a write for this job: {words}") in cluster.events


async def test_no_error_while_a_refusal_is_reported_stops_the_work() -> None:
    cluster = build_cluster()
    Kubelet(cluster)
    controller = Controller(cluster)
    key = cluster.apply(build_plain_job())
    faults: list[Exception] = [Refused("Forbidden", "not yours")]
    cluster.fault = lambda operation, _manifest: (
        faults.pop() if faults and operation == "write_status" else None
    )
    post, troubles = cluster.post_event, [NotFound("gone"), ValueError("a defect")]

    async def post_event(job: dict[str, Any], **event: Any) -> None:
        if event["reason"] == "Refused" and troubles:
            faults.append(Refused("Forbidden", "not yours"))
            raise troubles.pop()
        await post(job, **event)

    cluster.post_event = post_event  # type: ignore[method-assign]
    status = await asyncio.wait_for(controller.run_until_finished(key), 30)
    assert status.state == "Complete"
    assert troubles == []


async def test_a_job_that_vanishes_is_logged() -> None:
    cluster = build_cluster()
    controller = Controller(cluster)
    key = cluster.apply(build_plain_job())
    waiting = asyncio.create_task(controller.run_until_finished(key))
    await asyncio.sleep(0)
    cluster.delete_job(key)
    with pytest.raises(LookupError, match="default/digits is gone"):
        await asyncio.wait_for(waiting, 30)


async def test_who_stops_waiting_leaves_no_task_behind() -> None:
    cluster = build_cluster()
    key = cluster.apply(build_plain_job())
    waiting = asyncio.create_task(Controller(cluster).run_until_finished(key))
    for _ in range(100):  # until there is nothing left to do but wait
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_cluster_that_asks_to_wait_for_nothing_is_not_asked_without_end() -> None:
    cluster = build_cluster()
    tries = [0]

    def fault(_operation: str, _manifest: dict[str, Any]) -> Exception | None:
        tries[0] += 1
        return Unavailable("busy", retry_after=0)

    cluster.fault = fault
    key = cluster.apply(build_plain_job())
    waiting = asyncio.create_task(Controller(cluster).run_until_finished(key))
    for _ in range(1000):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert tries[0] < 10


@pytest.mark.parametrize("ticks", range(6))
async def test_a_cancellation_at_the_moment_of_a_wakeup_takes_effect(ticks: int) -> None:
    cluster = build_cluster()
    controller = Controller(cluster)
    running = asyncio.create_task(controller.run())
    cluster.apply(build_plain_job(activeDeadlineSeconds=1000))  # looked at again later: a wait with an end
    for _ in range(100):
        await asyncio.sleep(0)
    cluster.apply(build_plain_job(name="another"))
    for _ in range(ticks):
        await asyncio.sleep(0)
    running.cancel()
    done, _ = await asyncio.wait({running}, timeout=10)
    assert done, "the controller continues although it was cancelled"
