from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from support.world.fake_cluster import FakeCluster
from support.world.jobs import build_plain_job
from trainjob.cluster import JobKey, Snapshot
from trainjob.controller import Controller, Load, WorkQueue


class SlowCluster(FakeCluster):
    """Answers no question until it is let go."""

    def __init__(self) -> None:
        super().__init__(lambda: datetime.now(UTC))
        self.asked = asyncio.Event()
        self.let_go = asyncio.Event()

    async def observe(self, key: JobKey) -> Snapshot | None:
        self.asked.set()
        await self.let_go.wait()
        return await super().observe(key)


async def test_how_the_work_goes() -> None:
    cluster, done = SlowCluster(), asyncio.Event()
    passes: list[tuple[JobKey, float]] = []

    def count(key: JobKey, seconds: float) -> None:
        passes.append((key, seconds))
        done.set()

    controller = Controller(cluster, workers=1, on_reconciled=count)
    assert controller.load() == Load(waiting=0, longest=0, unserved=0)
    first, second = (cluster.apply(build_plain_job(name=name)) for name in ("first", "second"))
    assert controller.load().waiting == 2
    running = asyncio.create_task(controller.run())
    await cluster.asked.wait()
    load = controller.load()
    assert load.waiting == 1
    assert load.longest > 0
    assert load.unserved > 0
    assert passes == []
    cluster.let_go.set()
    await done.wait()
    assert passes[0][0] == first
    assert passes[0][1] > 0
    assert second != first
    running.cancel()


async def test_a_job_is_observed_when_its_key_is_added() -> None:
    cluster = SlowCluster()
    cluster.let_go.set()
    key = cluster.apply(build_plain_job())
    controller = Controller(cluster)  # which was not there yet when the job came
    running = asyncio.create_task(controller.run())
    controller.add(key)
    async with asyncio.timeout(30):
        await cluster.asked.wait()
    running.cancel()


async def test_passes_that_wait_for_nothing_let_other_tasks_run() -> None:
    passed: list[JobKey] = []
    controller = Controller(
        FakeCluster(lambda: datetime.now(UTC)), on_reconciled=lambda key, _: passed.append(key)
    )
    keys = [JobKey("default", f"gone-{number}") for number in range(200)]
    for key in keys:
        controller.add(key)
    running = asyncio.create_task(controller.run())
    seen = set()
    while len(passed) < len(keys):
        await asyncio.sleep(0)
        seen.add(len(passed))
    running.cancel()
    assert len(seen) > len(keys) / 8


def test_the_wait_of_the_key_that_is_next() -> None:
    now = [100.0]
    queue: WorkQueue[str] = WorkQueue(lambda: now[0])
    assert queue.longest_wait() == 0
    queue.add("a")
    now[0] = 103.0
    queue.add("b")
    queue.add("a")
    now[0] = 104.0
    assert queue.longest_wait() == 4
    assert queue.take() == "a"
    assert queue.longest_wait() == 1
    assert queue.take() == "b"
    assert queue.longest_wait() == 0


class HalfSlowCluster(SlowCluster):
    """Answers questions about the jobs of other namespaces at once."""

    async def observe(self, key: JobKey) -> Snapshot | None:
        return await FakeCluster.observe(self, key) if key.namespace == "ours" else await super().observe(key)


async def test_one_namespaces_passes_that_last_hold_up_no_other() -> None:
    cluster, passed = HalfSlowCluster(), asyncio.Event()

    def count(key: JobKey, _seconds: float) -> None:
        if key.namespace == "ours":
            passed.set()

    controller = Controller(cluster, workers=4, on_reconciled=count)
    for number in range(20):
        cluster.apply(build_plain_job(name=f"slow-{number}", namespace="theirs"))
    running = asyncio.create_task(controller.run())
    await cluster.asked.wait()
    cluster.apply(build_plain_job(namespace="ours"))
    async with asyncio.timeout(10):
        await passed.wait()
    cluster.let_go.set()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
