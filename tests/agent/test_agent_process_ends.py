"""Real agents, real processes: how training ends, and what the pods leave behind."""

from __future__ import annotations

from pathlib import Path

from support.agents.agent_job import Job, is_alive, pids, until


def test_a_good_end(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}) as job:
        job.start()
        job.wait_started(1)
        job.send("worker-1", "exit 0")
        job.wait_state("worker-1", "finished")
        assert job.agents["worker-1"].popen.poll() is None
        job.send("worker-0", "exit 0")

        assert job.codes() == {"worker-0": 0, "worker-1": 0}
        assert [job.termination_message(replica) for replica in job.agents] == [{}, {}]


def test_parameter_servers_serve_until_the_chief_is_done(tmp_path: Path) -> None:
    with Job(tmp_path, {"chief": 1, "worker": 1, "ps": 1}) as job:
        job.start()
        starts = job.wait_started(1)
        job.send("chief-0", "exit 0")

        assert job.codes() == {"chief-0": 0, "worker-0": 0, "ps-0": 0}
        assert not any(map(is_alive, pids(starts)))


def test_training_is_given_up_when_the_restarts_are_used_up(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}, maxRestarts=1) as job:
        job.start()
        job.wait_started(1)
        job.send("worker-1", "exit 3")
        job.wait_started(2)
        job.send("worker-1", "exit 4")

        assert job.codes() == {"worker-0": 85, "worker-1": 4}
        for replica in job.agents:
            message = job.termination_message(replica)
            failure = message["failure"]
            assert (message["agent"], message["gaveUp"], message["restarts"]["counted"]) == (1, True, 1)
            assert (failure["replica"], failure["reason"], failure["exitCode"]) == ("worker-1", "Crashed", 4)
            assert failure["message"] == "leaving with 4"
            assert failure["logTail"].endswith("toy worker-1 attempt 2\nleaving with 4\n")


def test_a_permanent_failure_ends_training_at_once(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}) as job:
        job.start()
        job.wait_started(1)
        job.send("worker-0", "exit 87")

        assert job.codes() == {"worker-0": 87, "worker-1": 85}
        assert job.termination_message("worker-1")["failure"]["reason"] == "CheckpointMismatch"
        assert job.termination_message("worker-1")["failure"]["permanent"]


def test_the_same_failure_three_times_in_a_row(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}, maxRestarts=10) as job:
        job.start()
        for attempt in (1, 2, 3):
            job.wait_started(attempt)
            job.send("worker-1", "exit 1")

        assert job.codes() == {"worker-0": 85, "worker-1": 1}
        assert job.termination_message("worker-0")["failure"]["repeated"]


def test_the_evaluator_neither_waits_nor_is_waited_for(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 1, "evaluator": 1}) as job:
        job.start("evaluator-0")
        until(job.events, "the evaluator's start")
        job.start("worker-0")
        job.wait_started(1)
        job.report("evaluator-0", state="evaluating", evaluation={"step": 3, "metrics": {}})
        job.wait_report("evaluator-0", state="evaluating")
        job.send("worker-0", "exit 0")
        assert job.agents["worker-0"].wait() == 0
        assert len(job.events()) == 2
        job.send("evaluator-0", "exit 7")

        assert job.agents["evaluator-0"].wait() == 7
        message = job.termination_message("evaluator-0")
        assert (message["gaveUp"], message["failure"]["exitCode"]) == (False, 7)
