"""Restart counts: merging never lowers one, in any order."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob_trainer.contract.restarts import RestartCounts

NUMBERS = st.integers(0, 5)
COUNTS = st.builds(
    RestartCounts,
    attempt=NUMBERS,
    counted=NUMBERS,
    not_counted=NUMBERS,
    reset=NUMBERS,
    since_progress=NUMBERS,
    furthest_step=st.none() | NUMBERS,
)


def grown(counts: RestartCounts) -> tuple[int, ...]:
    growing = (counts.attempt, counts.counted, counts.not_counted, counts.reset)
    return (*growing, -1 if counts.furthest_step is None else counts.furthest_step)


@given(COUNTS, COUNTS)
def test_merging_is_monotone_and_fair(one: RestartCounts, other: RestartCounts) -> None:
    merged = one.merge(other)
    assert merged == other.merge(one)
    assert one.merge(one) == one
    for counts in (one, other):
        assert all(a >= b for a, b in zip(grown(merged), grown(counts), strict=True))
        assert grown(merged.merge(counts)) == grown(merged)
    assert merged.since_progress in (one.since_progress, other.since_progress)


@given(COUNTS, COUNTS, COUNTS)
def test_merging_in_any_order(first: RestartCounts, second: RestartCounts, third: RestartCounts) -> None:
    assert grown(first.merge(second).merge(third)) == grown(first.merge(second.merge(third)))


@given(COUNTS, st.booleans(), st.none() | NUMBERS)
def test_events_only_add(counts: RestartCounts, counted: bool, step: int | None) -> None:
    for after in (counts.restarted(counted=counted), counts.cut_off(step), counts.at_least(3)):
        assert all(a >= b for a, b in zip(grown(after), grown(counts), strict=True))


@given(COUNTS)
def test_json_keeps_all_counts(counts: RestartCounts) -> None:
    assert RestartCounts.from_json(counts.to_json()) == counts


@pytest.mark.parametrize(
    "raw", [None, 3, [], {}, {"counted": "2"}, {"attempt": -1}, {"furthestStep": True}, {"reset": 1.5}]
)
def test_malformed_counts_are_zero(raw: Any) -> None:
    assert RestartCounts.from_json(raw) == RestartCounts()


@pytest.mark.parametrize(
    ("before", "report", "after"),
    [
        ({"counted": 1, "since_progress": 1}, (1, None, None), {"counted": 1}),
        (
            {"since_progress": 2, "furthest_step": 9},
            (9, None, None),
            {"since_progress": 2, "furthest_step": 9},
        ),
        ({"since_progress": 2, "furthest_step": 9}, (10, 9, 8), {"furthest_step": 9}),
        ({"counted": 2, "furthest_step": 9}, (10, 9, 8), {"counted": 2, "furthest_step": 9}),
        ({"counted": 2, "furthest_step": 9}, (10, 10, 8), {"counted": 2, "reset": 2, "furthest_step": 9}),
        ({"counted": 2}, (20, 20, 20), {"counted": 2}),
        ({"counted": 2}, (None, None, None), {"counted": 2}),
    ],
)
def test_which_reports_are_progress(
    before: dict[str, int], report: tuple[Any, ...], after: dict[str, int]
) -> None:
    assert astuple(RestartCounts(**before).progressed(*report)) == astuple(RestartCounts(**after))
