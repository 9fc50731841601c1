"""Real agents, real processes: who is let in at the port, who isn't, and what a wrong environment brings."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from pathlib import Path

import pytest

from support.agents.agent_job import Job, is_alive, pids, until
from trainjob.cluster.agents.bundle import build_bundle
from trainjob.cluster.agents.wire import AgentRefused


def test_garbage_does_nothing(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}) as job, contextlib.ExitStack() as stack:
        job.start()
        starts = job.wait_started(1)
        for port in job.agent_port.values():
            for data in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(100000), bytes(32) + b"\xff" * 4):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                with contextlib.suppress(OSError):
                    client.sendall(data)
            for _ in range(100):
                stack.enter_context(socket.create_connection(("127.0.0.1", port)))

        report = job.ask()
        assert (report["phase"], report["attempt"]) == ("running", 1)
        assert job.ask("worker-1")["leaderLostSeconds"] is None
        assert all(map(is_alive, pids(starts)))
        assert job.agents["worker-1"].output.count("refused a connection") == 1


def test_a_wrong_token_is_refused(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}) as job:
        job.start("worker-0")
        job.wait_phase("meeting")
        with pytest.raises(AgentRefused):
            job.ask(token="guessed", world={"worker": 1})  # noqa: S106
        (tmp_path / "bundle" / "token").write_text("guessed")
        job.start("worker-1")
        until(lambda: "waiting for the leading agent" in job.agents["worker-1"].output, "its complaint")

        assert job.ask()["members"]["worker-1"]["state"] == "absent"
        assert "another token" in job.agents["worker-0"].output


def test_a_member_reports_its_state_to_the_controller(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}) as job:
        job.start("worker-1")
        until(lambda: "waiting" in job.agents["worker-1"].output, "its complaint")
        report = job.ask("worker-1", world={"worker": 1})
        assert (report["role"], report["replica"], report["child"]) == ("member", "worker-1", "idle")
        assert report["leaderLostSeconds"] > 4.5, "agents start in any order: a short wait is no news"

        job.start("worker-0")
        job.wait_started(1)

        report = job.ask("worker-1")
        assert (report["leaderLostSeconds"], report["child"], report["attempt"]) == (None, "running", 1)


def test_the_program_runs_as_it_comes_and_once_it_is_checked(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 2}) as job:
        job.program = tmp_path / "packed" / "trainjob.pyz"
        job.program.parent.mkdir()
        job.program.write_bytes(build_bundle())
        job.digest = hashlib.sha256(job.program.read_bytes()).hexdigest()
        (job.program.parent / "token").write_text((tmp_path / "bundle" / "token").read_text())
        job.start()
        job.wait_started(1)
        # What is mounted is another program from now on: nothing of it is ever loaded.
        job.program.write_bytes(b"planted")
        job.kill_child("worker-1")
        job.wait_started(2)
        for replica in job.agents:
            job.send(replica, "exit 0")
        assert job.codes() == {"worker-0": 0, "worker-1": 0}


def test_a_wrong_environment_is_reported(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 1}) as job:
        job.start(address="nowhere")
        assert job.codes() == {"worker-0": 80}
        failure = job.termination_message("worker-0")["failure"]
        assert (failure["reason"], failure["permanent"]) == ("InvalidConfiguration", True)
        assert failure["message"] == "TRAINJOB_AGENT.address: must be host:port, got 'nowhere'"
        assert f"trainjob: agent: {failure['message']}" in job.agents["worker-0"].output


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    with Job(tmp_path, {"worker": 1}, maxRestarts=0) as job:
        job.command = ("no-such-program",)
        job.start()
        assert job.codes() == {"worker-0": 127}
        assert "no such program" in job.termination_message("worker-0")["failure"]["message"]
