"""Steps of each call, by the writer's clock."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob_trainer.keras.pace import (
    CALLS_A_LOOK,
    TIMED_STEPS,
    Looks,
    StepsPerExecution,
    steps_a_call,
)


def run(executions: StepsPerExecution, seconds_a_step: Sequence[float]) -> list[int]:
    """The steps of calls whose steps take so long each."""
    counts = []
    for seconds in seconds_a_step:
        counts.append(executions.wanted)
        executions.record(executions.wanted, executions.wanted * seconds)
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
    assert run(StepsPerExecution(lambda number: number), seconds_a_step) == expected


def test_workers_of_unequal_clocks_make_equal_calls() -> None:
    writers: list[int] = []

    def tell(number: int) -> int:
        writers.append(number)
        return number

    fast, slow = StepsPerExecution(tell), StepsPerExecution(lambda _: writers[-1])
    for _ in range(3):
        assert fast.wanted == slow.wanted
        fast.record(fast.wanted, fast.wanted * 0.002)
        slow.record(slow.wanted, slow.wanted * 0.2)
    assert fast.wanted == slow.wanted == 250
    assert len(writers) == 1


def test_the_speed_is_looked_at_soon_and_then_now_and_then() -> None:
    counts = run(
        StepsPerExecution(lambda number: number), [1.0, *[0.05] * 2, *[0.01] * 5, *[0.1] * CALLS_A_LOOK]
    )
    assert counts[:9] == [1, TIMED_STEPS, 10, 10, *[16] * 4, 50]  # the fourth call's look sees 20 steps
    assert counts[8:17] == [50] * 8 + [5]


def test_a_look_sees_all_steps_since_the_last_one() -> None:
    """A call that an epoch's end has cut short is not the measure of all."""
    executions = StepsPerExecution(lambda number: number)
    for count, seconds in ((1, 9.0), (4, 0.04), (49, 0.49), (1, 0.51)):
        executions.record(count, seconds)
    assert executions.wanted == 25


def test_a_short_rest_is_taken_along() -> None:
    executions = StepsPerExecution(lambda number: number)
    run(executions, [1.0, 0.025])
    assert executions.wanted == 20
    assert [executions.next_call(left) for left in (100, 31, 30, 20, 1)] == [20, 20, 30, 20, 1]


@given(left=st.integers(1, 3000), seconds=st.floats(1e-5, 2.0))
def test_a_call_never_passes_an_end(left: int, seconds: float) -> None:
    executions = StepsPerExecution(lambda number: number)
    while left:
        count = executions.next_call(left)
        assert 1 <= count <= min(left, executions.longest)
        executions.record(count, count * seconds)
        left -= count


def test_a_call_takes_about_half_a_second() -> None:
    assert [steps_a_call(seconds) for seconds in (0.0, 0.005, 0.3, 9.0)] == [1000, 100, 1, 1]


@pytest.mark.parametrize(
    ("seconds_a_call", "expected"),
    [
        ([9.0, 0.6, 0.6, 0.6], [1, 2, 3, 4]),  # the first traces
        ([0.25] * 6, [1, 3, 5]),
        ([0.0] * 40, [1, 1 + CALLS_A_LOOK, 1 + 2 * CALLS_A_LOOK]),
        ([0.0] * 17 + [2.0] * 16 + [2.0, 2.0], [1, 17, 33, 34, 35]),  # they have become longer
    ],
)
def test_workers_look_about_twice_a_second(seconds_a_call: Sequence[float], expected: list[int]) -> None:
    now, asked, calls = 0.0, [], 0

    def wishes() -> int:
        asked.append(calls)
        return 7

    looks = Looks(lambda numbers: numbers, clock=lambda: now)
    for calls, seconds in enumerate(seconds_a_call, 1):
        now += seconds
        assert looks.after_call(wishes) == (7 if asked[-1:] == [calls] else 0)
    assert asked == expected


def test_workers_look_where_they_have_to_and_do_as_the_writer_says() -> None:
    looks = Looks(lambda _numbers: [3, 0], clock=lambda: 0.0)
    assert looks.after_call(lambda: 0) == 3
    assert looks.after_call(lambda: 0) == 0
    assert looks.after_call(lambda: 0, now=True) == 3
