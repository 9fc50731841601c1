from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob.cluster.kube.informer import Backoff


def waits(count: int, rand: float) -> list[float]:
    backoff = Backoff(1.0, 10.0, lambda: rand)
    return [backoff.next() for _ in range(count)]


@pytest.mark.parametrize(
    ("rand", "expected"),
    [(1.0, [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]), (0.0, [0.5, 1.0, 2.0, 4.0, 5.0, 5.0])],
)
def test_waits_double_up_to_a_limit(rand: float, expected: list[float]) -> None:
    assert waits(6, rand) == expected


def test_success_resets_it() -> None:
    backoff = Backoff(1.0, 10.0, lambda: 1.0)
    for _ in range(5):
        backoff.next()
    assert backoff.failures == 5
    backoff.reset()
    assert (backoff.failures, backoff.next()) == (0, 1.0)


@given(st.integers(1, 2000), st.floats(0, 1), st.none() | st.floats(0, 1000))
def test_no_wait_is_shorter_than_asked_for_or_longer_than_the_limit(
    failures: int, rand: float, asked: float | None
) -> None:
    backoff = Backoff(0.2, 30.0, lambda: rand)
    for _ in range(failures):
        backoff.next()
    assert (asked or 0.0) <= backoff.next(asked) <= max(30.0, asked or 0.0)
