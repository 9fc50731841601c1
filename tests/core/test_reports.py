from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.world.agents import training
from support.world.jobs import build_job
from trainjob.core.agent_reports import AgentReport, merge_notices, project_report, read_report
from trainjob_trainer.contract.reports import Report
from trainjob_trainer.contract.wire import key_of

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
KEYS = [key_of(each.name) for each in fields(Report)]


@pytest.mark.parametrize(
    ("sources", "merged"),
    [
        ([], ()),
        ([("a", "b"), ("b", "c"), ("a",)], ("a", "b", "c")),
        ([("b",), ("a",), ("b",)], ("b", "a")),
        ([tuple("abcdefgh"), ("i",)], tuple("abcdefgh")),
        ([tuple("abcdefg"), ("a", "h", "i")], tuple("abcdefgh")),
    ],
)
def test_notices_are_only_added_each_once_and_eight_at_most(
    sources: list[tuple[str, ...]], merged: tuple[str, ...]
) -> None:
    assert merge_notices(*sources) == merged


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        (None, []),
        ("a", []),
        ({"a": 1}, []),
        (["a", 1, None, [], "", "a"], ["a"]),
        (["\x1b[31mred\x1b[0m\nline\u202e"], ["red line"]),
        (["x" * 999], ["x" * 300]),
        ([str(n) for n in range(99)], [str(n) for n in range(8)]),
    ],
)
def test_notices_of_an_untrusted_report(raw: object, read: list[str]) -> None:
    assert list(read_report({"notices": raw}).notices or ()) == read
    assert AgentReport.model_validate({"notices": raw}).notices == read
    assert read_report({"notices": raw}).to_json().get("notices", []) == read


def test_a_whole_report() -> None:
    report = read_report(
        {
            "state": "training",
            "step": 220,
            "totalSteps": 440,
            "epoch": 10,
            "loss": 0.25,
            "metrics": {"accuracy": 0.9712345678},
            "examplesPerSecond": 1234,
            "stepSeconds": 0.5,
            "workSeconds": 0.3,
            "inputSeconds": 0.1,
            "checkpointStep": 200,
            "resumedFrom": 100,
            "evaluation": {"step": 200, "metrics": {"loss": 0.3}, "final": True},
            "curves": {"loss": "10:2.5 20:1.25"},
            "waitingForStorage": "cannot read\n/output",
            "stoppedEarly": "an agent of an earlier version says so",
            "time": 1.5,
        }
    )
    assert vars(report) == {
        **vars(Report()),
        "state": "training",
        "step": 220,
        "total_steps": 440,
        "epoch": 10,
        "loss": 0.25,
        "metrics": {"accuracy": 0.9712345678},
        "examples_per_second": 1234.0,
        "step_seconds": 0.5,
        "work_seconds": 0.3,
        "input_seconds": 0.1,
        "checkpoint_step": 200,
        "resumed_from": 100,
        "evaluation": {"step": 200, "metrics": {"loss": 0.3}, "final": True},
        "curves": {"loss": "10:2.5 20:1.25"},
        "waiting_for_storage": "cannot read /output",
        "time": 1.5,
    }


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_numbers_that_json_lacks_come_as_text(text: str) -> None:
    report = read_report({"loss": text, "metrics": {"x": text}})
    assert str(report.loss) == text
    assert str((report.metrics or {})["x"]) == text


@pytest.mark.parametrize(
    ("raw", "kept"),
    [
        (None, None),
        ({}, None),
        (["1:1"], None),
        ({"loss": [[1, 1]], "accuracy": None, "x": {"1": 1}}, None),
        ({"loss": "1:1", "\x1b[31mred": "1:1", "y" * 129: "1:1", "x": "1:é"}, {"loss": "1:1"}),
        ({"loss": "1:1", "long": "1:1 " * 1100}, None),
        ({str(n): "1:1" for n in range(99)}, {str(n): "1:1" for n in range(32)}),
    ],
)
def test_curves_of_an_untrusted_report(raw: object, kept: dict[str, str] | None) -> None:
    report = read_report({"curves": raw})
    assert report.curves == kept
    assert report.to_json().get("curves") == kept
    member = {"pod": "a", "report": {"curves": raw}}
    found = project_report({"members": {"worker-0": member}}, {"worker-0"})
    assert found["members"]["worker-0"]["report"].get("curves") == kept


@given(st.dictionaries(st.sampled_from(KEYS), json_values))
def test_no_report_breaks_a_job(raw: dict[str, Any]) -> None:
    read_report(raw)


@pytest.mark.parametrize("number", [10**400, -(10**400), 2**63])
def test_numbers_beyond_what_the_status_holds_are_left_out(number: int) -> None:
    report = read_report({"step": number, "loss": number, "metrics": {"x": number}})
    assert report.step is None
    assert read_report({"examplesPerSecond": "nan"}).examples_per_second is None


def test_metrics_that_would_swell_the_status_are_left_out() -> None:
    report = read_report({"metrics": {f"metric{i}": i for i in range(1000)}})
    assert list(report.metrics or ()) == [f"metric{i}" for i in range(32)]
    assert read_report({"metrics": {"\ud800\x1b": 1, "x" * 200: 1}}).metrics is None


odd = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just({"a": [1]})
progress = st.dictionaries(st.sampled_from(KEYS), odd, max_size=3)
failures = st.fixed_dictionaries(
    {"replica": st.just("worker-0")},
    optional=dict.fromkeys(("pod", "reason", "exitCode", "message", "logTail", "step", "counted"), odd),
)
members = st.dictionaries(
    st.sampled_from(["worker-0", "worker-1", "\x1b"]),
    st.dictionaries(st.sampled_from(["pod", "state", "seconds", "x"]), odd, max_size=2)
    | st.fixed_dictionaries({"report": progress}),
    max_size=2,
)
ledgers = st.dictionaries(st.sampled_from(["attempt", "counted", "furthestStep", "x"]), odd, max_size=2)
nested = st.fixed_dictionaries(
    {},
    optional={
        "phase": odd,
        "world": st.just({"worker": 2, "x": 1}) | odd,
        "restarts": ledgers | odd,
        "failure": failures | odd,
        "members": members | odd,
        "x": odd,
    },
)


wild = (
    odd
    | st.sampled_from([sys.maxsize, -sys.maxsize, 2**63, 10**400, 1e308, -1e308, 1e-308, "nan", "inf", 0, -1])
    | st.floats()
)
wild_progress = st.dictionaries(st.sampled_from(KEYS), wild)


@example({"step": 1, "totalSteps": sys.maxsize}, {"step": 2, "totalSteps": sys.maxsize})
@example(
    {"step": -sys.maxsize, "totalSteps": sys.maxsize}, {"step": sys.maxsize - 1, "totalSteps": sys.maxsize}
)
@settings(max_examples=settings.default.max_examples // 4)
@given(wild_progress, wild_progress)
def test_no_figure_stops_a_decision(first: dict[str, Any], second: dict[str, Any]) -> None:
    async def play() -> None:
        world, agents = await training(build_job())
        for report in (first, second):
            agents.report("worker-0", **{"state": "training", "step": 3, **report})
            agents.report("worker-1", **{"state": "training", "step": 3, **report})
            await world.settle()
            await world.pass_time(31)
        agents.fail("worker-1")
        await world.settle()
        assert (world.status.state, world.status.restarts.counted) == ("Restarting", 1)

    asyncio.run(play())


@given(nested)
def test_what_is_kept_of_a_report_says_the_same_and_can_be_written(raw: dict[str, Any]) -> None:
    kept = project_report(raw, {"worker-0"})
    json.dumps(kept, allow_nan=False).encode()
    assert project_report(kept, {"worker-0"}) == kept
    assert set(kept.get("members", ())) <= {"worker-0"}
    assert AgentReport.model_validate(kept).restart_counts == AgentReport.model_validate(raw).restart_counts
    assert AgentReport.model_validate(kept).failure == AgentReport.model_validate(raw).failure


@given(st.dictionaries(st.sampled_from(KEYS), json_values))
def test_what_is_kept_of_progress_says_the_same(raw: dict[str, Any]) -> None:
    assert str(read_report(read_report(raw).to_json())) == str(read_report(raw)), (
        "as text: NaN equals nothing"
    )


def test_a_replica_with_a_number_that_python_does_not_read_is_none() -> None:
    assert AgentReport.model_validate({"failure": {"replica": "worker-" + 5000 * "9"}}).failure is None
