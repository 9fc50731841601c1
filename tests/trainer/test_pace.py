"""Steps of each call, by the writer's clock."""

from collections.abc import Sequence

import pytest

from trainjob_trainer.pace import CALLS_A_LOOK, TIMED_STEPS, Pace


def run(pace: Pace, seconds_a_step: Sequence[float]) -> list[int]:
    """The steps of calls whose steps take so long each."""
    counts = []
    for seconds in seconds_a_step:
        counts.append(pace.wanted)
        pace.record(pace.wanted, pace.wanted * seconds)
    return counts


@pytest.mark.parametrize(
    ("seconds_a_step", "expected"),
    [
        ([10.0, 0.01, 0.01, 0.01], [1, TIMED_STEPS, 50, 50]),  # the first traces
        ([0.0, 0.0, 0.0], [1, TIMED_STEPS, 1000]),
        ([3.0, 3.0, 3.0], [1, TIMED_STEPS, 1]),
        ([1.0, 0.01, 0.1, 0.1], [1, TIMED_STEPS, 50, 50]),  # no change before all meet again
    ],
)
def test_it_begins_with_one_and_comes_to_half_a_second(
    seconds_a_step: Sequence[float], expected: list[int]
) -> None:
    assert run(Pace(lambda number: number), seconds_a_step) == expected


def test_workers_of_unequal_clocks_make_equal_calls() -> None:
    writers: list[int] = []

    def tell(number: int) -> int:
        writers.append(number)
        return number

    fast, slow = Pace(tell), Pace(lambda _: writers[-1])
    for _ in range(3):
        assert fast.wanted == slow.wanted
        fast.record(fast.wanted, fast.wanted * 0.002)
        slow.record(slow.wanted, slow.wanted * 0.2)
    assert fast.wanted == slow.wanted == 250
    fast.agree()
    slow.agree()
    assert len(writers) == 2


def test_the_speed_is_looked_at_again_when_all_meet() -> None:
    pace = Pace(lambda number: number)
    run(pace, [1.0, 0.01, 0.1])
    pace.agree()
    assert pace.wanted == 5


def test_without_epochs_the_speed_is_looked_at_now_and_then() -> None:
    counts = run(Pace(lambda number: number), [1.0, *[0.01] * 5, *[0.1] * CALLS_A_LOOK])
    assert counts == [1, TIMED_STEPS, *[50] * (CALLS_A_LOOK - 2), *[5] * 6]


def test_before_a_second_call_there_is_nothing_to_agree_on() -> None:
    pace = Pace(lambda _: pytest.fail("asked"))
    pace.agree()
    assert run(pace, [1.0]) == [1]
    pace.agree()
    assert pace.wanted == TIMED_STEPS


def test_a_fixed_one_stays() -> None:
    pace = Pace.fixed(7)
    assert run(pace, [1.0, 0.001, 0.001]) == [7, 7, 7]
    assert pace.is_fixed
