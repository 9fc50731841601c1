"""Real agents, real processes: a worker group starts together and restarts in place."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from support.agents.agent_job import Job, is_alive, pids, until


def test_no_replica_starts_before_all_are_present(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2, "evaluator": 1}) as job:
        job.start("worker-0")
        report = job.wait_phase("meeting")
        states = {replica: member["state"] for replica, member in report["members"].items()}
        assert states == {"worker-0": "idle", "worker-1": "absent"}
        assert job.events() == []

        job.start("worker-1")
        starts = job.wait_started(1)

        assert {start["epoch"] for start in starts.values()} == {"1.1"}
        assert [start["cluster"] for start in starts.values()] == [job.cluster, job.cluster]
        assert not any(start["agent"] for start in starts.values())


def killed(replica: str, attempt: int) -> dict[str, Any]:
    return {"replica": replica, "attempt": attempt, "reason": "Killed", "exitCode": 137, "signal": 9}


def shown(failure: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    return {key: failure[key] for key in expected}


def test_all_restart_in_place_when_one_is_killed(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 3}) as job:
        job.start()
        first = job.wait_started(1)
        job.kill_child("worker-1")
        second = job.wait_started(2)
        report = job.wait_phase("running")

        assert {replica: start["cluster"] for replica, start in second.items()} == dict.fromkeys(
            first, job.cluster
        )
        assert not any(map(is_alive, pids(first)))
        assert report["restarts"] == {
            "attempt": 2,
            "counted": 1,
            "notCounted": 0,
            "reset": 0,
            "sinceProgress": 1,
            "furthestStep": None,
        }
        assert shown(report["failure"], killed("worker-1", 1)) == killed("worker-1", 1)


def test_the_leading_agent_is_killed_and_returns_in_another_pod(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 3}) as job:
        job.start()
        first = job.wait_started(1)
        job.agents["worker-0"].kill()
        until(lambda: not any(map(is_alive, pids(first))), "the end of all training processes")
        assert job.ask("worker-1")["leaderLostSeconds"] is not None

        job.start("worker-0", incarnation=2)
        second = job.wait_started(2)

        assert {start["epoch"] for start in second.values()} == {"2.2"}
        assert job.ask("worker-1")["leaderLostSeconds"] is None


def test_a_member_is_killed_and_returns_in_another_pod(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 3}) as job:
        job.start()
        first = job.wait_started(1)
        job.agents["worker-2"].kill()
        report = job.wait_phase("meeting")
        assert not any(map(is_alive, pids(first)))
        assert (report["members"]["worker-2"]["state"], report["failure"]["reason"]) == (
            "lost",
            "Unreachable",
        )

        job.start("worker-2", incarnation=2)
        second = job.wait_started(2)

        assert {start["epoch"] for start in second.values()} == {"1.2"}
        counts = job.ask()["restarts"]
        assert (counts["counted"], counts["notCounted"]) == (0, 0)  # the controller knows what it was


def test_a_frozen_agent_rejoins(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}) as job:
        job.start()
        first = job.wait_started(1)
        job.agents["worker-1"].kill(signal.SIGSTOP)
        report = job.wait_phase("meeting")
        assert report["members"]["worker-1"]["state"] == "lost"
        assert is_alive(first["worker-1"]["pid"])

        job.agents["worker-1"].kill(signal.SIGCONT)
        job.wait_started(2)

        assert not is_alive(first["worker-1"]["pid"])
        assert job.ask()["restarts"]["notCounted"] == 1


def test_a_leader_that_was_frozen(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}) as job:
        job.start()
        first = job.wait_started(1)
        job.agents["worker-0"].kill(signal.SIGSTOP)
        until(lambda: not is_alive(first["worker-1"]["pid"]), "the end of worker 1's training process")
        job.agents["worker-0"].kill(signal.SIGCONT)
        job.wait_started(2)
        assert not any(map(is_alive, pids(first)))


def test_a_process_that_lost_its_peer_is_not_to_blame(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 3}) as job:
        job.start()
        job.wait_started(1)
        job.send("worker-0", "exit 85")
        job.send("worker-1", "exit 85")
        job.wait_state("worker-1", "idle")
        job.send("worker-2", "exit 82")
        job.wait_started(2)

        report = job.ask()
        assert (report["failure"]["replica"], report["failure"]["reason"]) == ("worker-2", "OutputUnwritable")
        assert (report["restarts"]["counted"], report["restarts"]["notCounted"]) == (1, 0)


def test_a_process_that_stands_still_is_found_and_blamed(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}, stallTimeoutSeconds=1) as job:
        job.start()
        job.wait_started(1)
        job.report("worker-1", step=7, stepSeconds=0.1)
        job.send("worker-1", "stand-still")
        job.wait_report("worker-1", step=7)
        job.report("worker-0", step=7, stepSeconds=0.1)
        job.wait_started(2)

        failure = job.ask()["failure"]
        expected = {"replica": "worker-1", "reason": "Stalled", "exitCode": None, "step": 7, "counted": True}
        assert shown(failure, expected) == expected
        assert failure["message"] == "no progress for 1 s; its process is stopped"
        assert "most recent call last" in failure["logTail"]


def test_progress_resets_counted_restarts(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 1}, maxRestarts=1) as job:
        job.start()
        job.wait_started(1)
        job.report("worker-0", step=10, checkpointStep=8)
        job.wait_report("worker-0", step=10)
        job.kill_child("worker-0")
        job.wait_started(2)
        job.report("worker-0", step=12, checkpointStep=8, resumedFrom=8)
        counts = job.wait_report("worker-0", step=12)["restarts"]
        assert (counts["furthestStep"], counts["sinceProgress"], counts["reset"]) == (10, 0, 0)
        job.report("worker-0", step=13, checkpointStep=12, resumedFrom=8)
        assert job.wait_report("worker-0", checkpointStep=12)["restarts"]["reset"] == 1
        job.kill_child("worker-0")
        job.wait_started(3)


def test_a_pod_that_is_being_replaced_is_uncounted_on(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}) as job:
        job.start()
        first = job.wait_started(1)
        report = job.wait_phase("meeting", incarnations={"worker-1": 2})
        assert report["failure"]["message"] == "is being replaced"
        assert not is_alive(first["worker-0"]["pid"])
        until(lambda: not is_alive(first["worker-1"]["pid"]), "the end of what nobody waits for")
        old = job.agents["worker-1"]
        job.start("worker-1", incarnation=2, address=f"127.0.0.1:{job.spare_port}")
        job.wait_started(2)
        assert old.wait() == 85


def test_a_leading_agent_whose_pod_is_replaced_leaves_as_if_the_kubelet_had_asked(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}) as job:
        job.start()
        first = job.wait_started(1)
        old = job.agents["worker-0"]
        job.ask(world={"worker": 2}, incarnations={"worker-0": 2})
        assert old.wait() == 86
        job.start("worker-0", incarnation=2)
        job.wait_started(2)
        assert not any(map(is_alive, pids(first)))


def test_a_deposed_controllers_target_is_rejected_and_logged_once(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}) as job:
        job.start()
        job.wait_started(1)
        job.ask(world={"worker": 2}, lease=2, generation=3)
        for _ in range(3):
            report = job.ask(world={"worker": 1}, lease=1, generation=4)
            assert (report["phase"], report["world"]) == ("running", {"worker": 2})
        message = (
            "target is rejected: it is of generation 4 and lease 1, the newest of generation 3 and lease 2"
        )
        assert job.agents["worker-0"].output.count(message) == 1
        assert len(job.ask(world={"worker": 2}, lease=2, generation=3)["members"]) == 2


def test_an_agent_ends_with_its_fenced_process(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}) as job:
        job.start()
        job.wait_started(1)
        job.send("worker-0", "exit 89")
        assert job.agents["worker-0"].wait() == 89
        job.start("worker-0", incarnation=2)
        job.wait_started(2)
