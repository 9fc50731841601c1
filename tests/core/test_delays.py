from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from trainjob.core.delays import refusal_delay, start_delay
from trainjob.core.observed import Refusal
from trainjob_trainer.contract.restarts import restart_delay

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0), (1, 0), (2, 1), (3, 2), (4, 4), (7, 32), (8, 60), (1000, 60)]
)
def test_between_restarts(failures: int, seconds: int) -> None:
    assert restart_delay(failures) == timedelta(seconds=seconds)


@pytest.mark.parametrize(("failures", "seconds"), [(1, 10), (2, 20), (5, 160), (6, 320), (7, 360), (99, 360)])
def test_between_starts_of_a_pod_as_batch_v1_waits(failures: int, seconds: int) -> None:
    assert start_delay(failures) == timedelta(seconds=seconds)


@pytest.mark.parametrize(("refusals", "seconds"), [(1, 5), (2, 10), (3, 20), (4, 40), (5, 60), (1000, 60)])
def test_between_refusals(refusals: int, seconds: int) -> None:
    assert refusal_delay(refusals) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("times", "ago", "left", "again"),
    [
        (1, 0, 5, 5),
        (1, 4, 1, 1),
        (1, 5, 0, 10),  # due now: what comes after the attempt is the second wait
        (3, 5, 15, 15),
        (3, 100, -80, 40),
        (1, -3600, 0, 10),  # the clock was put back
    ],
)
def test_patience_after_a_refusal(times: int, ago: int, left: int, again: int) -> None:
    refusal = Refusal("Pod p", "Forbidden", "full", times=times, at=NOW - timedelta(seconds=ago))
    assert refusal.patience_left(NOW) == timedelta(seconds=left)
    assert refusal.next_attempt(NOW) == timedelta(seconds=again)


def test_refusals_in_a_row_are_counted() -> None:
    first = Refusal("Pod p", "Forbidden", "full", at=NOW).after(None)
    second = Refusal("Pod q", "Forbidden", "full", at=NOW + timedelta(seconds=5)).after(first)
    assert (first.times, second.times) == (1, 2)
    assert (second.what, second.at) == ("Pod q", NOW + timedelta(seconds=5))


def test_a_refusal_of_unknown_time_holds_nothing_back() -> None:
    assert Refusal("Pod p", "Forbidden", "full").patience_left(NOW) == timedelta(0)
