from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from support.kube.fake_agents import build_report, build_witness
from trainjob.cluster.agents.poller import AgentRecord

FIGURES_SECONDS = 5.0

WORKER: tuple[str, ...] = ("members", "worker-1")


def changed(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return the report with another value there."""
    report = deepcopy(build_report())
    holder: Any = report
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
    return report


def heard(*reports: dict[str, Any], at: float = 0.0) -> AgentRecord:
    """Return the record of a leading agent that has reported this, without news."""
    record = AgentRecord(FIGURES_SECONDS)
    for report in reports:
        record.receive(report, at)
    record.has_news(at)
    return record


def test_nothing_is_known_before_anything_was_said() -> None:
    record = AgentRecord(FIGURES_SECONDS)
    assert record.agent_report(1.0) is None
    record.miss("pod", 1.0)
    assert record.agent_report(2.0) is None


def test_an_answer_has_its_age() -> None:
    assert heard(build_report(), at=10.0).agent_report(12.5) == {
        **build_report(),
        "age": 2.5,
        "unreachableSeconds": 0.0,
    }


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("phase",), "stopping"),
        (("attempt",), 2),
        (("world",), {"worker": 3}),
        (("failure",), {"replica": "worker-1"}),
        (("restarts",), {"counted": 1}),
        ((*WORKER, "state"), "lost"),
        ((*WORKER, "incarnation"), 2),
        ((*WORKER, "pod"), "another"),
        (("members",), {}),
        ((*WORKER, "report"), {"state": "starting"}),
    ],
)
def test_what_decides_something_is_news_at_once(path: tuple[str, ...], value: Any) -> None:
    record = heard(build_report())
    record.receive(changed(path, value), 0.1)
    assert record.has_news(0.1)
    assert not record.has_news(0.1)


def test_figures_are_news_now_and_then() -> None:
    record = heard(build_report(step=1))
    record.receive(build_report(step=2), FIGURES_SECONDS - 0.1)
    assert not record.has_news(FIGURES_SECONDS - 0.1)
    assert record.has_news(FIGURES_SECONDS)
    record.receive(build_report(step=2), 3 * FIGURES_SECONDS)
    assert not record.has_news(3 * FIGURES_SECONDS)


@pytest.mark.parametrize("path", [("phaseSeconds",), (*WORKER, "seconds")])
def test_that_time_goes_by_is_no_news(path: tuple[str, ...]) -> None:
    record = heard(build_report())
    record.receive(changed(path, 99.0), 100.0)
    assert not record.has_news(100.0)


def test_silence_is_news_and_so_is_its_length_now_and_then() -> None:
    record = heard(build_report())
    assert record.miss("pod", 1.0) == 0.0
    assert record.has_news(1.0)
    assert record.miss("pod", 2.0) == 1.0
    assert not record.has_news(2.0)
    assert record.has_news(1.0 + FIGURES_SECONDS)
    record.receive(build_report(), 8.0)
    assert record.has_news(8.0)


def test_each_pod_is_silent_by_itself() -> None:
    record = heard(build_report())
    record.miss("pod", 1.0)
    assert record.miss("pod", 11.0) == 10.0
    record.receive_witnesses([build_witness(10.0)])
    assert record.miss("successor", 12.0) == 0.0
    report = record.agent_report(13.0)
    assert report is not None
    assert (report["unreachableSeconds"], report["age"]) == (1.0, 13.0)
    assert "witness" not in report
    record.clear_silence()
    assert (record.agent_report(14.0) or {})["unreachableSeconds"] == 0.0


@pytest.mark.parametrize(
    ("said", "believed"),
    [
        ([], None),
        ([build_witness(12.0)], build_witness(12.0)),
        ([build_witness(12.0), build_witness(None, "worker-2")], build_witness(None, "worker-2")),
        ([build_witness(12.0), build_witness(3.0, "worker-2")], build_witness(3.0, "worker-2")),
    ],
)
def test_the_witness_that_heard_of_it_last_is_believed(
    said: list[dict[str, Any]], believed: dict[str, Any] | None
) -> None:
    record = heard(build_report())
    record.miss("pod", 1.0)
    record.receive_witnesses(said)
    assert (record.agent_report(1.0) or {}).get("witness") == believed


def test_a_witness_alone_is_something() -> None:
    record = AgentRecord(FIGURES_SECONDS)
    record.miss("pod", 1.0)
    record.has_news(1.0)
    record.receive_witnesses([build_witness(12.0)])
    assert record.has_news(1.1)
    assert record.agent_report(2.0) == {"unreachableSeconds": 1.0, "witness": build_witness(12.0)}


def test_what_no_agent_should_say_is_put_up_with() -> None:
    record = heard({"members": [1], "phase": 7}, {"members": {"worker-0": "x"}})
    assert record.agent_report(0.0) is not None
