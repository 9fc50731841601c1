"""Counts that travel: merging never takes one back, whoever merges with whom in which order."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob_trainer.agent.budget import Ledger, restart_delay

COUNTS = st.integers(0, 5)
LEDGERS = st.builds(
    Ledger,
    attempt=COUNTS,
    charged=COUNTS,
    uncharged=COUNTS,
    refunded=COUNTS,
    since_progress=COUNTS,
    furthest_step=st.none() | COUNTS,
)


def grown(ledger: Ledger) -> tuple[int, ...]:
    counts = (ledger.attempt, ledger.charged, ledger.uncharged, ledger.refunded)
    return (*counts, -1 if ledger.furthest_step is None else ledger.furthest_step)


@given(LEDGERS, LEDGERS)
def test_merging_is_monotone_and_fair(one: Ledger, other: Ledger) -> None:
    merged = one.merge(other)
    assert merged == other.merge(one)
    assert one.merge(one) == one
    for ledger in (one, other):
        assert all(a >= b for a, b in zip(grown(merged), grown(ledger), strict=True))
        assert grown(merged.merge(ledger)) == grown(merged)
    assert merged.since_progress in (one.since_progress, other.since_progress)


@given(LEDGERS, LEDGERS, LEDGERS)
def test_merging_in_any_order(first: Ledger, second: Ledger, third: Ledger) -> None:
    assert grown(first.merge(second).merge(third)) == grown(first.merge(second.merge(third)))


@given(LEDGERS, st.booleans(), st.none() | COUNTS)
def test_what_happens_only_adds(ledger: Ledger, charged: bool, step: int | None) -> None:
    for after in (ledger.restarted(charged=charged), ledger.cut_off(step), ledger.at_least(3)):
        assert all(a >= b for a, b in zip(grown(after), grown(ledger), strict=True))


@given(LEDGERS)
def test_it_survives_its_journey(ledger: Ledger) -> None:
    assert Ledger.from_json(ledger.to_json()) == ledger


@pytest.mark.parametrize(
    "raw", [None, 3, [], {}, {"charged": "2"}, {"attempt": -1}, {"furthestStep": True}, {"refunded": 1.5}]
)
def test_what_is_no_ledger_is_an_empty_one(raw: Any) -> None:
    assert Ledger.from_json(raw) == Ledger()


@pytest.mark.parametrize(
    ("before", "report", "after"),
    [
        ({"charged": 1, "since_progress": 1}, (1, None, None), {"charged": 1}),
        (
            {"since_progress": 2, "furthest_step": 9},
            (9, None, None),
            {"since_progress": 2, "furthest_step": 9},
        ),
        ({"since_progress": 2, "furthest_step": 9}, (10, 9, 8), {"furthest_step": 9}),
        ({"charged": 2, "furthest_step": 9}, (10, 9, 8), {"charged": 2, "furthest_step": 9}),
        ({"charged": 2, "furthest_step": 9}, (10, 10, 8), {"charged": 2, "refunded": 2, "furthest_step": 9}),
        ({"charged": 2}, (20, 20, 20), {"charged": 2}),
        ({"charged": 2}, (None, None, None), {"charged": 2}),
    ],
)
def test_what_counts_as_progress(
    before: dict[str, int], report: tuple[Any, ...], after: dict[str, int]
) -> None:
    assert astuple(Ledger(**before).progressed(*report)) == astuple(Ledger(**after))


def test_the_back_off() -> None:
    assert [restart_delay(n) for n in (0, 1, 2, 3, 4, 8, 9, 1000)] == [0, 0, 1, 2, 4, 60, 60, 60]
