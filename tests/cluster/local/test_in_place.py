"""Training that is restarted in living pods: the agent itself, with small programs as training processes."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.local.local_cluster import (
    KEY,
    Lines,
    ended,
    is_alive,
    local_cluster,
    python,
    ref_of,
    state_of,
    until,
)
from support.world.jobs import build_job
from trainjob.api import parse
from trainjob.cluster import Manifest, Snapshot
from trainjob.cluster.local import LocalCluster
from trainjob.core.agent import agent_source
from trainjob.core.manifests import build_pod, build_token_secret
from trainjob.core.settings import Bundle

WORLD = {"worker": 2}
BUNDLE = Bundle(b"", b"key")
TARGET: dict[str, Any] = {"world": WORLD, "incarnations": {"worker-0": 1, "worker-1": 1}, "maxRestarts": 3}

# Says who it is; SIGTERM makes it save and leave, SIGUSR1 finish.
STAY = """
import json, os, signal, sys
task = json.loads(os.environ["TF_CONFIG"])["task"]
attempt = int(os.environ["TRAINJOB_ATTEMPT"])
def report(**values):
    path = os.environ["TRAINJOB_PROGRESS_FILE"]
    with open(path + ".new", "w") as file: json.dump({"time": 0, **values}, file)
    os.replace(path + ".new", path)
def leave(*_):
    os.write(1, b"saved\\n")  # print() may be what it interrupts
    sys.exit(86)
signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
print("attempt", attempt, "pid", os.getpid(), flush=True)
"""


class InPlace:
    """A job of two workers on the local cluster, without a controller."""

    def __init__(self, cluster: LocalCluster, lines: Lines, code: str, **spec: Any) -> None:
        self.cluster = cluster
        self.lines = lines
        raw = build_job(uid="some-uid", container={"command": python(STAY + code)}, **spec)
        self.job = parse(raw)

    def pod(self, index: int, incarnation: int = 1) -> Manifest:
        return build_pod(
            self.job,
            role="worker",
            index=index,
            incarnation=incarnation,
            attempt=incarnation,
            source=agent_source(self.job.metadata, BUNDLE),
        )

    def name(self, index: int, incarnation: int = 1) -> str:
        return str(self.pod(index, incarnation)["metadata"]["name"])

    async def start(self) -> None:
        await self.cluster.create(build_token_secret(self.job, BUNDLE))
        for index in range(2):
            await self.cluster.create(self.pod(index))
        self.cluster.set_target(KEY, TARGET)

    async def pid(self, index: int, attempt: int) -> int:
        """Return the training process of a worker, once it runs."""
        prefix = f"attempt {attempt} pid "
        await self.lines.wait_until(lambda seen: any(is_it(line, index, prefix) for line in seen))
        return next(int(line[1].split()[-1]) for line in self.lines.seen if is_it(line, index, prefix))


def is_it(line: tuple[str, str], index: int, prefix: str) -> bool:
    return line[0] == f"worker-{index}" and line[1].startswith(prefix)


def report_of(snapshot: Snapshot) -> dict[str, Any]:
    return dict(snapshot.agent_report or {})


async def test_a_killed_process_restarts_in_its_pod(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, lines):
        job = InPlace(cluster, lines, "signal.pause()")
        await job.start()
        first = [await job.pid(index, 1) for index in range(2)]
        os.kill(first[1], signal.SIGKILL)
        second = [await job.pid(index, 2) for index in range(2)]
        assert not [pid for pid in first if is_alive(pid)]
        assert not set(first) & set(second)
        snapshot = await until(cluster, lambda s: report_of(s).get("attempt") == 2)
        said = report_of(snapshot)
        assert (said["failure"]["replica"], said["failure"]["reason"], said["failure"]["signal"]) == (
            "worker-1",
            "Killed",
            9,
        )
        assert said["restarts"]["counted"] == 1
        for pid in second:
            os.kill(pid, signal.SIGUSR1)
        for index in range(2):
            assert (await ended(cluster, job.name(index)))["exitCode"] == 0


async def test_what_fails_too_often_ends_all_pods_with_its_reason(tmp_path: Path) -> None:
    code = """
if task["index"] == 1:
    report(state="training", step=30)
    raise ValueError("boom")
signal.pause()
"""
    async with local_cluster(tmp_path) as (cluster, lines):
        job = InPlace(cluster, lines, code, maxRestarts=0)
        await job.start()
        cluster.set_target(KEY, {**TARGET, "maxRestarts": 0})
        states = [await ended(cluster, job.name(index)) for index in range(2)]
        assert [state["exitCode"] for state in states] == [85, 1]
        for state in states:
            words = json.loads(state["message"])
            failure = words["failure"]
            assert (words["agent"], words["gaveUp"]) == (1, True)
            assert (failure["replica"], failure["step"], failure["message"]) == (
                "worker-1",
                30,
                "ValueError: boom",
            )
            assert failure["logTail"].rstrip().endswith("ValueError: boom")


async def test_a_deleted_pod_saves_and_its_successor_meets_the_others(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, lines):
        job = InPlace(cluster, lines, "if attempt == 1: signal.pause()")
        await job.start()
        kept = await job.pid(0, 1)
        await job.pid(1, 1)
        pod = next(p for p in cluster.snapshot().pods if p["metadata"]["name"] == job.name(1))
        await cluster.set_labels(ref_of(pod), {"trainjob.dev/live": None})
        await cluster.delete(ref_of(pod))
        await until(cluster, lambda s: job.name(1) not in [p["metadata"]["name"] for p in s.pods])
        assert ("worker-1", "saved") in lines.seen
        assert not is_alive(kept)
        assert "running" in state_of(cluster.snapshot().pods[0])
        cluster.set_target(KEY, {**TARGET, "incarnations": {"worker-0": 1, "worker-1": 2}})
        await cluster.create(job.pod(1, 2))
        for name in (job.name(0), job.name(1, 2)):
            assert (await ended(cluster, name))["exitCode"] == 0
        assert report_of(cluster.snapshot())["restarts"]["counted"] == 0


@pytest.mark.parametrize("index", [0, 1])
async def test_a_killed_agent_leaves_nothing_behind(index: int, tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, lines):
        job = InPlace(cluster, lines, "signal.pause()")
        await job.start()
        pids = [await job.pid(i, 1) for i in range(2)]
        os.kill(parent_of(pids[index]), signal.SIGKILL)
        assert (await ended(cluster, job.name(index)))["exitCode"] == 137
        assert not is_alive(pids[index])
        await cluster.close()
        assert not is_alive(pids[1 - index])


async def test_the_end_of_the_run_lets_worker_0_save(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, lines):
        job = InPlace(cluster, lines, "signal.pause()")
        await job.start()
        pids = [await job.pid(i, 1) for i in range(2)]
        await cluster.close(grace_seconds=30)
        # The other one may hear of worker 0's end before it hears of its own.
        assert ("worker-0", "saved") in lines.seen
        assert not [pid for pid in pids if is_alive(pid)]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
