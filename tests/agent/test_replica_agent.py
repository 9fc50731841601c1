"""The agent of one replica, with a training process that the test controls."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from trainjob_trainer.agent.child import ChildExit
from trainjob_trainer.agent.replica_agent import ReplicaAgent
from trainjob_trainer.agent.settings import Address, Settings
from trainjob_trainer.contract.restarts import RestartCounts
from trainjob_trainer.task import Task


class FakeChild:
    """Ends when the test ends it; records stops until then."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.running = False
        self.exit: ChildExit | None = None
        self.report: Mapping[str, Any] | None = None
        self.report_age: float | None = None
        self.log_line = ""
        self.is_stopped = False
        self.starts: list[Mapping[str, str]] = []
        self.stops: list[float] = []
        self.stacks = 0
        self.was_stopped = asyncio.Event()

    def start(self, changes: Mapping[str, str]) -> None:
        assert not self.running
        self.running, self.exit, self.report = True, None, None
        self.starts.append(changes)

    async def stop(self, grace: float) -> None:
        self.stops.append(grace)
        self.was_stopped.set()

    async def dump_stacks(self) -> str:
        self.stacks += 1
        return "the stack"

    def end(self, code: int) -> None:
        self.running = False
        number = code - 128 if code > 128 else None
        self.exit = ChildExit(code, number, False, "the log", "the message", "", 7, 1.5)
        self._changed()

    def reports(self, **report: Any) -> None:
        self.report = report
        self._changed()


LEADER = {"replica": "worker-0", "address": Address("b", 1)}
CLUSTER = {"worker": ("x:1", "y:2222")}


class Case:
    def __init__(self, replica: str = "worker-1", **settings: Any) -> None:
        role, _, index = replica.rpartition("-")
        values = {
            "command": ["true"],
            "env": {},
            "code": None,
            "task": Task(role, int(index), CLUSTER),
            "incarnation": 2,
            "pod": "p",
            "address": Address("a", 1),
            "leader": Address("b", 1),
            "max_restarts": 3,
            "stall_timeout": None,
            "memory_grows": False,
            "warm_standby": False,
            "grace": 30.0,
            "counts": RestartCounts(),
            "token": b"t",
            "pod_ip": "",
            "state_dir": Path("/nowhere"),
            "termination_log": None,
            "beat_seconds": 1.0,
            "lost_seconds": 10.0,
            **settings,
        }
        self.now = 100.0
        self.sent: list[Mapping[str, Any]] = []
        self.child: Any = None
        self.agent = ReplicaAgent(Settings(**values), self._make_child, clock=lambda: self.now)
        self.agent.send = self.sent.append

    def _make_child(self, changed: Callable[[], None]) -> Any:
        self.child = FakeChild(changed)
        return self.child

    def start(self, attempt: int = 1) -> None:
        cluster = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}
        self.agent.handle(
            {
                "type": "start",
                "attempt": attempt,
                "epoch": f"1.{attempt}",
                "tfConfig": {"cluster": cluster, "task": {"type": "worker", "index": 1}},
                "restarts": {"attempt": attempt},
            }
        )

    async def stop(self, attempt: int = 1, *, graceful: bool = False, stacks: bool = False) -> None:
        self.agent.handle({"type": "stop", "attempt": attempt, "graceful": graceful, "stacks": stacks})
        await asyncio.sleep(0.01)

    def kinds(self) -> list[str]:
        return [m["type"] if m["type"] != "beat" else m["child"] for m in self.sent]


async def test_a_start_sets_task_attempt_and_generation() -> None:
    case = Case()
    case.start()
    changes = case.child.starts[0]
    assert json.loads(changes["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}
    assert json.loads(changes["TF_CONFIG"])["cluster"]["worker"] == ["10.0.0.1:2222", "10.0.0.2:2222"]
    assert (changes["TRAINJOB_ATTEMPT"], changes["TRAINJOB_GENERATION"]) == ("1", "1.1")
    assert case.agent.join("10.0.0.2")["address"] == "10.0.0.2:2222"
    assert case.agent.join("fd00::1")["address"] == "[fd00::1]:2222"


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, "10.0.0.1,10.0.0.2"),
        ({"http_proxy": "http://proxy:3128"}, "10.0.0.1,10.0.0.2"),
        ({"no_proxy": ".svc,169.254.169.254"}, ".svc,169.254.169.254,10.0.0.1,10.0.0.2"),
        ({"no_proxy": ".svc", "no_grpc_proxy": ".corp"}, ".corp,10.0.0.1,10.0.0.2"),
        ({"no_proxy": ".svc", "no_grpc_proxy": ""}, "10.0.0.1,10.0.0.2"),
    ],
)
async def test_grpc_calls_the_replicas_without_a_proxy(env: dict[str, str], expected: str) -> None:
    case = Case(env=env)
    case.start()
    assert case.child.starts[0]["no_grpc_proxy"] == expected


async def test_a_start_gets_the_last_reported_step() -> None:
    case = Case()
    case.start(1)
    case.child.reports(state="training", step=4)
    case.child.reports(state="training", step=8, checkpointStep=6)
    case.child.reports(state="training", step=True, checkpointStep=-1)  # the next start would refuse them
    case.child.end(82)
    case.start(2)
    case.child.reports(state="starting")
    case.child.end(82)
    case.start(3)
    reported = [changes.get("TRAINJOB_REPORTED_STEP") for changes in case.child.starts]
    assert reported == [None, "8", "8"]
    reported = [changes.get("TRAINJOB_REPORTED_CHECKPOINT") for changes in case.child.starts]
    assert reported == [None, "6", "6"]


async def test_an_attempt_is_started_once() -> None:
    case = Case()
    case.start(3)
    case.child.end(1)
    case.start(3)
    case.start(2)
    assert len(case.child.starts) == 1
    case.start(4)
    assert len(case.child.starts) == 2


async def test_a_bad_end_is_reported_before_the_state() -> None:
    case = Case()
    case.start()
    case.child.end(137)
    assert case.kinds() == ["running", "failed", "idle"]
    failure = case.sent[1]["failure"]
    assert (failure["reason"], failure["signal"], failure["step"], failure["pod"]) == ("Killed", 9, 7, "p")


async def test_an_end_by_a_stop_message_is_no_failure() -> None:
    case = Case()
    case.start()
    await case.stop()
    case.child.end(137)
    assert (case.kinds(), case.child.stops) == (["running", "stopping", "idle"], [0.0])


async def test_success_after_a_stop_is_no_success() -> None:
    case = Case()
    case.start()
    await case.stop(graceful=True)
    case.child.end(0)
    assert (case.agent.state, case.child.stops) == ("idle", [28.0])


async def test_a_late_stop_leaves_the_next_attempt_alone() -> None:
    case = Case()
    case.start(1)
    await case.stop(1, graceful=True)
    case.agent.handle({"type": "stop", "attempt": 1, "graceful": False})
    case.child.end(143)
    case.start(2)
    await case.stop(1)
    assert (case.agent.state, case.child.stops) == ("running", [28.0])


async def test_stacks_come_before_the_end() -> None:
    case = Case()
    case.start()
    await case.stop(stacks=True)
    assert (case.child.stacks, case.child.stops) == (1, [0.0])
    case.child.end(137)
    failed, beat = case.sent[-2:]
    reported = {key: failed["failure"][key] for key in ("replica", "reason", "exitCode", "logTail")}
    assert reported == {"replica": "worker-1", "reason": "Stalled", "exitCode": None, "logTail": "the stack"}
    assert beat["child"] == "idle"


@pytest.mark.parametrize(
    ("replica", "child_code", "code"),
    [
        ("worker-1", 86, 86),
        ("worker-1", 143, 143),
        ("worker-1", 3, 3),
        ("worker-1", 0, 86),
        ("worker-1", 137, 86),
        ("worker-1", 85, 86),
        ("evaluator-0", 143, 143),
        ("evaluator-0", 0, 0),
    ],
)
async def test_with_which_code_it_leaves(replica: str, child_code: int, code: int) -> None:
    case = Case(replica)
    if replica == "evaluator-0":
        case.agent.start_alone()
    else:
        case.start()
    case.agent.leave()
    case.child.end(child_code)
    assert (await case.agent.departure).code == code


@pytest.mark.parametrize(
    ("replica", "code", "report", "said"),
    [
        (
            "worker-0",
            137,
            {"checkpointStep": 400},
            "didn't fit into 23 s: its newest checkpoint is of step 400",
        ),
        ("worker-0", 137, {}, "didn't fit into 23 s: it has saved no checkpoint"),
        ("worker-0", 86, {"checkpointStep": 400}, ""),
        ("worker-1", 137, {}, ""),
    ],
)
async def test_the_writer_says_what_did_not_fit_into_its_grace(
    replica: str, code: int, report: dict[str, Any], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    case = Case(replica)
    case.start()
    case.child.reports(**report)
    case.agent.leave()
    case.now += 5
    await case.stop(graceful=True)
    case.child.end(code)
    for _ in range(2):  # the pod's end, and the leading agent
        case.agent._tell_what_is_lost(23.0)
    text = "".join(capfd.readouterr())
    assert said in text
    assert text.count("didn't fit") == bool(said)


async def test_a_leaving_agent_waits_for_a_third_of_its_grace() -> None:
    case = Case(grace=0.3)
    case.start()
    case.agent.leave()
    assert case.kinds()[-1] == "leaving"
    case.now += 0.1
    await case.child.was_stopped.wait()
    assert case.child.stops == [pytest.approx(0.125)]


async def test_a_stop_while_leaving_keeps_to_the_grace() -> None:
    case = Case()
    case.start()
    case.agent.leave()
    case.now += 5
    await case.stop(graceful=True)
    assert case.child.stops == [23.0]


async def test_nothing_is_started_while_leaving() -> None:
    case = Case()
    case.agent.leave()
    case.start()
    assert (case.child.starts, (await case.agent.departure).code) == ([], 86)


async def test_without_a_leader_training_ends_at_once() -> None:
    case = Case()
    case.start()
    case.agent.cut_off()
    await asyncio.sleep(0.01)
    assert (case.agent.state, case.child.stops) == ("stopping", [0.0])
    case.child.end(137)
    case.agent.cut_off()
    await asyncio.sleep(0.01)
    assert (case.agent.state, case.child.stops) == ("idle", [0.0])


async def test_an_agent_that_leaves_after_the_leader_has_its_grace() -> None:
    case = Case()
    case.start()
    case.agent.leave()
    case.agent.cut_off()
    await asyncio.sleep(0.01)
    assert case.agent.state == "stopping"
    assert [patience > 0 for patience in case.child.stops] == [True]


async def test_the_end() -> None:
    case = Case()
    case.start()
    failure = {"replica": "worker-0", "pod": "q", "reason": "Killed", "exitCode": 137}
    case.agent.handle(
        {"type": "end", "code": 85, "verdict": "failed", "failure": failure, "restarts": {"counted": 3}}
    )
    departure = await case.agent.departure
    assert (departure.code, departure.verdict, case.agent.counts.counted) == (85, "failed", 3)
    assert departure.failure is not None
    assert departure.failure.replica == "worker-0"


@pytest.mark.parametrize(("reason", "stacks"), [("Stalled", 1), ("Killed", 0)])
async def test_stacks_are_left_when_the_agents_give_up_for_a_stall(reason: str, stacks: int) -> None:
    case = Case()
    case.start()
    failure = {"replica": "worker-0", "pod": "q", "reason": reason, "exitCode": None}
    case.agent.handle({"type": "end", "code": 85, "verdict": "failed", "failure": failure})
    await case.agent.departure
    assert (case.child.stacks, case.child.stops) == (stacks, [0.0])


@pytest.mark.parametrize(("replica", "log"), [("worker-1", "the stack"), ("worker-0", "")])
async def test_the_blamed_replica_reports_its_stack(replica: str, log: str) -> None:
    case = Case()
    case.start()
    failure = {"replica": replica, "pod": "q", "attempt": 1, "reason": "Stalled", "exitCode": None}
    case.agent.handle({"type": "end", "code": 88, "verdict": "failed", "failure": failure})
    departure = await case.agent.departure
    assert departure.failure is not None
    assert departure.failure.log_tail == log


async def test_a_change_of_the_report_is_sent_at_once() -> None:
    case = Case()
    case.start()
    case.child.reports(state="training", step=1)
    case.child.reports(state="training", step=2)
    case.child.reports(state="saving", step=2)
    case.child.reports(state="saving", step=2, checkpointStep=2)
    reported = [m["report"] and m["report"]["state"] for m in case.sent]
    assert reported == [None, "training", "saving", "saving"]
    case.child.log_line = "connecting to 10.0.0.1:2222"
    assert case.agent.beat()["report"]["logLine"] == "connecting to 10.0.0.1:2222"


async def test_a_message_of_a_later_version_is_ignored() -> None:
    case = Case()
    case.agent.handle({"type": "dance"})
    assert case.sent == []


async def test_the_first_word_of_a_start_is_not_the_report_of_the_process_before() -> None:
    """A watchdog would take that one's steps for the new process's, which hasn't begun."""
    case = Case()
    case.start(1)
    case.child.reports(state="training", step=4)
    case.child.end(1)
    case.sent.clear()
    case.start(2)
    assert [(beat["child"], beat["report"]) for beat in case.sent] == [("running", None)]


def output(folder: Path) -> dict[str, Any]:
    variables = {"TRAINJOB_OUTPUT_DIR": str(folder), "TRAINJOB_UID": "mine"}
    return {**LEADER, "env": variables}


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it has never come true")


async def test_training_has_finished_with_the_writers_exit_code_and_not_before(tmp_path: Path) -> None:
    final = tmp_path / "checkpoints" / "final.json"
    case = Case(**output(tmp_path))
    case.start()
    case.child.reports(state="finished", step=7)
    assert not final.exists()
    case.child.end(0)
    await until(lambda: case.agent.state == "finished")
    assert json.loads(final.read_text())["endedAt"] == 7


@pytest.mark.parametrize("code", [1, 80, 137])
async def test_a_bad_end_of_the_writer_marks_nothing(tmp_path: Path, code: int) -> None:
    case = Case(**output(tmp_path))
    case.start()
    case.child.end(code)
    assert case.agent.state == "idle"
    assert not (tmp_path / "checkpoints").exists()


async def test_the_end_waits_for_the_outputs_volume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trainjob_trainer.agent.replica_agent._SECONDS_BETWEEN_TRIES", 0.01)
    (tmp_path / "checkpoints").write_text("where the folder is to be")
    case = Case(**output(tmp_path))
    case.start()
    case.child.end(0)
    await until(lambda: "waiting for storage" in capsys.readouterr().err)
    assert case.agent.state == "running"
    assert case.agent.beat()["report"]["waitingForStorage"].startswith("training has finished, and")
    (tmp_path / "checkpoints").unlink()
    await until(lambda: case.agent.state == "finished")


async def test_a_writer_that_is_stopped_while_it_waits_has_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainjob_trainer.agent.replica_agent._SECONDS_BETWEEN_TRIES", 0.01)
    (tmp_path / "checkpoints").write_text("where the folder is to be")
    case = Case(**output(tmp_path))
    case.start()
    case.child.end(0)
    await case.stop()
    await until(lambda: case.agent.state == "idle")


async def test_one_that_was_replaced_meanwhile_leaves_as_fenced(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / f".claim-2.3-{zlib.crc32(b'mine'):08x}").mkdir(parents=True)
    case = Case(**output(tmp_path))
    case.start()
    case.child.end(0)
    assert (await case.agent.departure).code == 89
    assert not (tmp_path / "checkpoints" / "final.json").exists()
