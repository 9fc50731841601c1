"""The termination message: always JSON, never too long."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainjob.core.agent_reports import read_termination_message
from trainjob_trainer.agent.termination import termination_message, write_termination
from trainjob_trainer.contract.reports import LARGEST_TERMINATION_MESSAGE, Failure
from trainjob_trainer.contract.restarts import RestartCounts

FAILURE = Failure("worker-1", "p", 1, 3, "Crashed", 1, message="boom", log_tail="a\nboom\n")
COUNTS = RestartCounts(attempt=3, counted=2)
REPORT = {"state": "failed", "step": 7, "metrics": {"accuracy": 0.5}, "time": 1.5, "totalSteps": 9}


def message_of(failure: Failure | None, report: Any = REPORT) -> dict[str, Any]:
    text = termination_message(failure, COUNTS, report, gave_up=True)
    assert text.isascii()
    assert len(text) <= LARGEST_TERMINATION_MESSAGE
    message: dict[str, Any] = json.loads(text)
    return message


def test_it_holds_what_ended_the_container(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "the last word of something else, which is longer than what follows" * 99, encoding="ascii"
    )
    write_termination(log, FAILURE, COUNTS, REPORT, gave_up=True)
    kept = {"state": "failed", "step": 7, "time": 1.5, "totalSteps": 9}
    assert json.loads(log.read_text(encoding="ascii")) == {
        "agent": 1,
        "gaveUp": True,
        "failure": FAILURE.to_json(),
        "restarts": COUNTS.to_json(),
        "report": kept,
    }


def test_only_a_container_has_the_file(tmp_path: Path) -> None:
    for path in (tmp_path / "log", None, tmp_path):
        write_termination(path, FAILURE, COUNTS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("log", "curves", "kept"),
    [
        ("boom", {"loss": "1:2.5 9:1"}, {"loss": "1:2.5 9:1"}),
        ("boom", {"loss": "1:1 odd 2:nan", "text": 7, "list": [[1, 2]]}, {"loss": "1:1"}),
        ("boom", [1], None),
        ("boom", {}, None),
        (
            "x" * 2048,
            {"loss": " ".join(f"{step}:0.5" for step in range(200))},
            {"loss": "0:0.5 128:0.5 199:0.5"},
        ),
        ("x" * 2048, {f"metric-{number}": "1:1 2:2" for number in range(32)}, None),
    ],
)
def test_curves_take_the_room_that_is_left(log: str, curves: object, kept: object) -> None:
    message = message_of(replace(FAILURE, message="m" * 500, log_tail=log), {**REPORT, "curves": curves})
    assert message["report"].get("curves") == kept
    assert message["failure"]["logTail"] == log
    read = read_termination_message(message)
    assert read is not None
    assert read.report is not None
    assert read.report.curves == kept


@pytest.mark.parametrize("letter", ["x", "ä", "\U0001f600", '"', "\x00"])
def test_the_end_of_a_long_log_is_kept(letter: str) -> None:
    failure = replace(FAILURE, log_tail=letter * 2040 + "the end", message="m" * 500)
    kept = message_of(failure)["failure"]
    assert kept["logTail"].endswith("the end")
    assert kept["message"] == failure.message
    assert kept["replica"] == "worker-1"


def test_a_long_report_goes_before_the_log() -> None:
    report = {**REPORT, "evaluation": {"metrics": {f"metric {i}": 0.5 for i in range(200)}}}
    message = message_of(replace(FAILURE, log_tail="y" * 2000), report)
    assert len(message["failure"]["logTail"]) == 2000
    assert message["report"] == {"state": "failed", "step": 7, "time": 1.5, "totalSteps": 9}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda below: st.lists(below, max_size=5) | st.dictionaries(st.text(), below, max_size=5),
    max_leaves=8,
)


@settings(max_examples=settings().max_examples // 3)
@given(
    failure=st.none()
    | st.dictionaries(st.sampled_from([*FAILURE.to_json(), "other"]), JSON | st.text(min_size=3000)).map(
        Failure.from_json
    ),
    report=st.none() | st.dictionaries(st.sampled_from([*REPORT, "other"]), JSON),
)
def test_it_is_always_short_ascii_json(failure: Failure | None, report: Any) -> None:
    assert message_of(failure, report)["gaveUp"] is True


@pytest.mark.parametrize("log", ["short", "x" * 2048, "\U0001f600" * 2048])
def test_the_controller_reads_it(log: str) -> None:
    failure = replace(FAILURE, log_tail=log, counted=False, permanent=True, repeated=True)
    text = termination_message(failure, COUNTS, REPORT, gave_up=True)
    message = read_termination_message(json.loads(text))
    assert message is not None
    assert (message.gave_up, message.restart_counts) == (True, COUNTS)
    assert message.failure is not None
    assert log.endswith(message.failure.log_tail)
    assert replace(message.failure, log_tail=log) == failure
    assert message.report is not None
    assert (message.report.step, message.report.total_steps) == (7, 9)
