"""Who waits for data, and what is said of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.golden import Golden
from trainjob.core.stragglers import NOTICEABLE_WAIT, describe_input, input_share


@pytest.mark.parametrize(
    ("step", "waited", "share"),
    [
        (0.2, 0.05, 0.25),
        (0.2, 0.0, 0.0),
        (None, 0.05, None),
        (0.2, None, None),
        (0.0, 0.0, None),
        (0.2, 0.3, 1.0),  # means of two calls
        (0.2, -0.1, 0.0),  # a clock that was set back
    ],
)
def test_the_share(step: float | None, waited: float | None, share: float | None) -> None:
    assert input_share(step, waited) == share


@pytest.mark.parametrize(
    "waited",
    [
        {},
        {"worker-0": 0.0, "worker-1": 0.1},
        {"worker-0": None, "worker-1": None},
        {"worker-0": 0.2},
        {"worker-0": 0.1, "worker-1": 0.43},
        {"chief-0": 0.5, "worker-0": 0.9},
        {"worker-0": 0.5, "worker-1": 0.5, "worker-2": 0.3, "worker-3": 0.0},
    ],
)
def test_the_sentence(waited: dict[str, float | None], golden: Golden) -> None:
    golden(describe_input(dict.fromkeys(waited, 1.0), waited))


@given(st.dictionaries(st.text(max_size=9), st.floats(0, 2), max_size=6))
def test_it_is_said_if_anybody_waits(waited: dict[str, float]) -> None:
    told = describe_input(dict.fromkeys(waited, 1.0), waited)
    assert (told is None) == all(share < NOTICEABLE_WAIT for share in waited.values())
