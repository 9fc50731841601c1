from __future__ import annotations

import numpy as np
import pytest

from trainjob_trainer.reporting.step_times import StepTimes


def test_each_step_counts_in_the_histogram_and_in_the_share() -> None:
    times = StepTimes()
    times.add(1, 4.0, 3.0)
    times.add(3, 6.0, 0.5)
    seconds, figures = times.drain()
    np.testing.assert_allclose(seconds, [4.0, 2.0, 2.0, 2.0])
    assert figures == {"input_share": pytest.approx((3.0 + 1.5) / 10.0)}
    assert len(times.drain()[0]) == 0


@pytest.mark.parametrize(
    ("calls", "share"),
    [
        ([], None),
        ([(2, 1.0, None)], None),
        ([(2, 1.0, None), (2, 1.0, 0.25)], 0.5),
        ([(1, 1.0, 1.2)], 1.0),  # the two are measured by different clocks
        ([(1, 1.0, -0.1)], 0.0),
        ([(1, 0.0, 0.0)], None),
    ],
)
def test_what_is_not_known_has_no_share(
    calls: list[tuple[int, float, float | None]], share: float | None
) -> None:
    times = StepTimes()
    for call in calls:
        times.add(*call)
    assert times.drain()[1] == ({} if share is None else {"input_share": share})
