"""The termination message: always JSON, never too long."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob_trainer.agent.termination import MAX_CHARACTERS, termination_message, write_termination

FAILURE = {
    "replica": "worker-1",
    "reason": "Crashed",
    "exitCode": 1,
    "message": "boom",
    "logTail": "a\nboom\n",
}
COUNTS = {"attempt": 3, "charged": 2}
REPORT = {"state": "failed", "step": 7, "metrics": {"accuracy": 0.5}, "time": 1.5, "totalSteps": 9}


def write(path: Path | None, failure: Any = FAILURE, report: Any = REPORT) -> None:
    write_termination(path, gave_up=True, failure=failure, counts=COUNTS, report=report)


def test_it_holds_what_ended_the_container(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "the last word of something else, which is longer than what follows" * 99, encoding="ascii"
    )
    write(log)
    kept = {"state": "failed", "step": 7, "time": 1.5, "totalSteps": 9}
    assert json.loads(log.read_text(encoding="ascii")) == {
        "agent": 1,
        "gaveUp": True,
        "failure": FAILURE,
        "restarts": COUNTS,
        "report": kept,
    }


def test_only_a_container_has_the_file(tmp_path: Path) -> None:
    write(tmp_path / "log")
    write(None)
    write(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("letter", ["x", "ä", "\U0001f600", '"', "\x00"])
def test_the_end_of_a_long_log_is_kept(letter: str) -> None:
    failure = {**FAILURE, "logTail": letter * 2040 + "the end", "message": "m" * 500}
    text = termination_message({"agent": 1, "failure": failure}, REPORT)
    assert len(text) <= MAX_CHARACTERS
    kept = json.loads(text)["failure"]
    assert kept["logTail"].endswith("the end")
    assert kept["message"] == failure["message"]
    assert kept["replica"] == "worker-1"


def test_a_long_report_goes_before_the_log() -> None:
    report = {**REPORT, "evaluation": {"metrics": {f"metric {i}": 0.5 for i in range(200)}}}
    message = json.loads(termination_message({"failure": {**FAILURE, "logTail": "y" * 2000}}, report))
    assert len(message["failure"]["logTail"]) == 2000
    assert message["report"] == {"state": "failed", "step": 7, "time": 1.5, "totalSteps": 9}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda below: st.lists(below, max_size=5) | st.dictionaries(st.text(), below, max_size=5),
)


@given(
    failure=st.none() | st.dictionaries(st.sampled_from([*FAILURE, "other"]), JSON | st.text(min_size=3000)),
    counts=st.dictionaries(st.text(), JSON),
    report=st.none() | st.dictionaries(st.sampled_from([*REPORT, "other"]), JSON),
)
def test_it_is_always_short_ascii_json(failure: Any, counts: Any, report: Any) -> None:
    text = termination_message({"agent": 1, "gaveUp": True, "failure": failure, "restarts": counts}, report)
    assert text.isascii()
    assert len(text) <= MAX_CHARACTERS
    assert json.loads(text)["gaveUp"] is True
