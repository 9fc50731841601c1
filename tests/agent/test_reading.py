"""Any frame with the right token becomes an event or is refused, and never breaks the agent."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents.tracebacks import show
from support.agents.worker_group import Simulation
from trainjob_trainer.agent.child import ChildExit
from trainjob_trainer.agent.failure import describe_exit
from trainjob_trainer.agent.messages import Beat, Failed, Leaving, read_join, read_member_message
from trainjob_trainer.agent.replica_agent import readable_report
from trainjob_trainer.contract.exits import EXITS, ExitCode, meaning_of
from trainjob_trainer.contract.reports import Failure
from trainjob_trainer.contract.targets import MalformedMessage, Target

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
BEATS = st.fixed_dictionaries(
    {"type": st.sampled_from(["beat", "failed", "leaving", "other"])},
    optional={
        "child": st.sampled_from(["idle", "running", "stopping", "finished"]) | JSON,
        "attempt": st.integers(0, 3) | JSON,
        "report": st.dictionaries(
            st.sampled_from(["state", "step", "checkpointStep", "resumedFrom", "error"]), JSON
        )
        | JSON,
        "beatAge": JSON,
        "failure": st.dictionaries(
            st.sampled_from(["replica", "reason", "exitCode", "message", "logTail", "time"]), JSON
        )
        | JSON,
        "stopped": JSON,
    },
)


@given(st.lists(BEATS, max_size=5))
def test_no_message_of_a_member_upsets_the_leading_agent(messages: list[dict[str, Any]]) -> None:
    simulation = Simulation({"worker": 2})
    simulation.gather()
    for message in messages:
        with contextlib.suppress(MalformedMessage):
            event = read_member_message(1, message)
            if event is not None:
                simulation.handle(event)
        simulation.tick(1.0)


@given(JSON | st.fixed_dictionaries({}, optional={"world": JSON, "incarnations": JSON, "restarts": JSON}))
def test_no_target_upsets_the_leading_agent(raw: Any) -> None:
    simulation = Simulation({"worker": 2})
    with contextlib.suppress(MalformedMessage):
        simulation.handle(Target.from_json(raw))


def test_members_messages() -> None:
    beat = read_member_message(7, {"type": "beat", "child": "running", "attempt": 2, "report": {"step": 1}})
    assert beat == Beat(7, "running", 2, {"step": 1})
    assert read_member_message(7, {"type": "leaving"}) == Leaving(7)
    failed = read_member_message(7, {"type": "failed", "attempt": 2, "failure": {"replica": "worker-1"}})
    assert isinstance(failed, Failed)
    assert failed.failure.reason == "Crashed"
    assert read_member_message(7, {"type": "of a later version"}) is None


@pytest.mark.parametrize(
    "changes",
    [{"replica": "x"}, {"replica": 3}, {"incarnation": -1}, {"pod": ""}, {"child": "lazy"}, {"attempt": "1"}],
)
def test_an_incomplete_join_is_refused(changes: dict[str, Any]) -> None:
    join = {
        "replica": "worker-1",
        "incarnation": 1,
        "pod": "p",
        "address": "a:1",
        "child": "idle",
        "attempt": 0,
    }
    assert read_join(1, join).replica == "worker-1"
    with pytest.raises(MalformedMessage):
        read_join(1, {**join, **changes})


def test_a_target() -> None:
    raw = {
        "world": {"worker": 2, "evaluator": 1, "ps": 0},
        "without": ["worker-1", 3],
        "incarnations": {"worker-0": 3},
        "maxRestarts": 5,
        "stallTimeoutSeconds": 30,
        "restarts": {"counted": 1},
    }
    target = Target.from_json(raw)
    assert (target.world, target.incarnations, target.max_restarts) == ({"worker": 2}, {"worker-0": 3}, 5)
    assert (target.stall_timeout, target.counts.counted, target.without) == (30.0, 1, {"worker-1"})
    assert Target.from_json({}) == Target()


def test_the_table_of_exit_codes() -> None:
    assert set(EXITS) == set(ExitCode) - {ExitCode.SUCCESS}
    assert [meaning_of(code).name for code in (1, 79, 128, 129, 137, 192, 193, 255)] == [
        *("Crashed", "Crashed", "Crashed", "Killed", "Killed", "Killed", "Crashed", "Crashed")
    ]
    assert [int(code) for code in EXITS if meaning_of(code).permanent] == [80, 81, 87, 90, 94]
    assert [int(code) for code in EXITS if not meaning_of(code).counted] == [83, 85, 86, 89, 92]
    for code, meaning in EXITS.items():
        assert meaning.name == "".join(word.capitalize() for word in ExitCode(code).name.split("_"))


@pytest.mark.parametrize(
    ("code", "reason", "out_of_memory", "expected"),
    [
        (1, "ValueError", False, ("Crashed", "the message", True)),
        (1, "", False, ("Crashed", "the message", True)),
        (137, "", False, ("Killed", "", True)),
        (137, "", True, ("OutOfMemory", "", True)),
        (143, "", False, ("Killed", "", True)),
        (139, "", False, ("Killed", "the message", True)),
        (137, "OutputFull", False, ("Killed", "the message", True)),
        (86, "Preempted", False, ("Preempted", "the message", False)),
    ],
)
def test_how_a_bad_end_is_reported(
    code: int, reason: str, out_of_memory: bool, expected: tuple[Any, ...]
) -> None:
    number = code - 128 if code > 128 else None
    ended = ChildExit(code, number, out_of_memory, "log", "the message", reason, 7, 1.5, memory=4096)
    failure = describe_exit(ended, replica="worker-1", pod="p", incarnation=1, attempt=2)
    assert (failure.reason, failure.message, failure.counted) == expected
    assert failure.memory == (4096 if out_of_memory else None)
    assert (failure.exit_code, failure.signal, failure.step, failure.log_tail) == (code, number, 7, "log")


@pytest.mark.parametrize(
    ("code", "last_line", "expected"),
    [
        (1, "OSError: [Errno 5] Input/output error: '/data/a'", 92),
        (1, "ConnectionRefusedError: [Errno 111] Connection refused", 92),
        (1, "OSError: [Errno 28] No space left on device", 83),
        (1, "PermissionError: [Errno 13] Permission denied: '/data/a'", 1),
        (1, "FileNotFoundError: [Errno 2] No such file or directory: '/data/a'", 1),
        (1, "ValueError: it said [Errno 5] before", 1),
        (2, "OSError: [Errno 5] Input/output error", 2),
    ],
)
def test_an_outage_before_tensorflow_is_imported(code: int, last_line: str, expected: int) -> None:
    """The trainer's hook isn't there yet: Python has written the number."""
    ended = ChildExit(code, None, False, show(last_line), "the message", "", None, 1.5)
    failure = describe_exit(ended, replica="worker-1", pod="p", incarnation=1, attempt=1)
    assert (failure.exit_code, failure.counted) == (expected, expected not in (83, 92))


def test_json_keeps_a_failure_within_bounds() -> None:
    failure = Failure(
        "worker-1",
        "p",
        2,
        3,
        "Killed",
        137,
        9,
        "two\nlines",
        "tail",
        7,
        counted=False,
        repeated=True,
        time=1.5,
    )
    read = Failure.from_json(failure.to_json())
    assert (read.message, read.to_json() | {"message": ""}) == (
        "two lines",
        failure.to_json() | {"message": ""},
    )
    long = Failure.from_json({**failure.to_json(), "message": "m" * 9999, "logTail": "x" + "t" * 9999})
    assert (len(long.message), long.log_tail) == (500, "t" * 2048)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (None, None),
        ({"state": "training", "loss": float("nan")}, {"state": "training", "loss": "nan"}),
        (
            {"state": "training", "metrics": {"a": float("inf")}},
            {"state": "training", "metrics": {"a": "inf"}},
        ),
        ({"state": "training", "step": 3, "x": "y" * 99999}, {"state": "training", "step": 3}),
        ({"state": "x" * 99999, "step": 3}, {"state": "x" * 64, "step": 3}),
    ],
)
def test_reports_that_would_not_fit_are_cut(report: Any, expected: Any) -> None:
    assert readable_report(report) == expected
