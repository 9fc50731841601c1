"""Real agents, real processes: pods that are asked to end, and worlds that change."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.agents.agent_job import Job, is_alive, pids, until


@pytest.mark.parametrize("leaving", ["worker-0", "worker-1"])
def test_a_leaving_agent_lets_the_writer_save_first(leaving: str, tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}) as job:
        job.start()
        job.wait_started(1)
        job.agents[leaving].kill(signal.SIGTERM)
        assert job.agents[leaving].wait() == 86
        assert job.events("terminated")[0]["replica"] == "worker-0"
        assert not job.termination_message(leaving)["gaveUp"]

        job.start(leaving, incarnation=2)
        job.wait_started(2)

        assert job.ask()["restarts"]["counted"] == 0


def test_all_are_asked_to_leave(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 3, "evaluator": 1}) as job:
        job.start()
        starts = job.wait_started(1)
        until(lambda: any(e["replica"] == "evaluator-0" for e in job.events()), "the evaluator's start")
        job.leave_with("evaluator-0", 143)
        for agent in job.agents.values():
            agent.kill(signal.SIGTERM)

        assert job.codes() == {"worker-0": 86, "worker-1": 86, "worker-2": 86, "evaluator-0": 143}
        assert "worker-0" in {event["replica"] for event in job.events("terminated")}
        assert not any(map(is_alive, pids(starts)))


def test_a_process_that_ignores_sigterm_is_killed_before_the_grace_is_over(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}, graceSeconds=2) as job:
        job.start()
        starts = job.wait_started(1)
        job.send("worker-1", "ignore")
        job.send("worker-1", "report {}")
        until(lambda: job.ask()["members"]["worker-1"]["report"], "worker 1's report")
        job.agents["worker-1"].kill(signal.SIGTERM)

        assert job.agents["worker-1"].wait() == 86
        assert not is_alive(starts["worker-1"]["pid"])


def test_leaving_before_anything_runs(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}) as job:
        job.start("worker-1")
        until(lambda: "waiting" in job.agents["worker-1"].output, "its complaint")
        job.agents["worker-1"].kill(signal.SIGTERM)
        assert job.agents["worker-1"].wait() == 86


def test_a_larger_world_by_target(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 3}) as job:
        small = {"worker": job.cluster["worker"][:2]}
        job.start("worker-0", "worker-1", cluster=small)
        job.wait_started(1, "worker-0", "worker-1")
        job.ask(world={"worker": 3})
        job.start("worker-2")
        starts = job.wait_started(2)

        assert [e["replica"] for e in job.events("terminated")] == ["worker-0", "worker-1"]
        assert all(start["cluster"] == job.cluster for start in starts.values())
        report = job.ask(world={"worker": 3})
        assert (report["world"], report["failure"], report["restarts"]["counted"]) == ({"worker": 3}, None, 0)


def test_a_smaller_world_by_target(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 3, "evaluator": 1}) as job:
        job.start("worker-0", "worker-1", "worker-2")
        job.wait_started(1)
        job.ask(world={"worker": 2})
        starts = job.wait_started(2, "worker-0", "worker-1")

        assert job.agents["worker-2"].wait() == 0
        assert all(
            start["cluster"] == {**job.cluster, "worker": job.cluster["worker"][:2]}
            for start in starts.values()
        )
