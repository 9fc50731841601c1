from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob_trainer.data.batches import Place, place_of, turns


@pytest.mark.parametrize(
    ("sizes", "worker", "expected"),
    [
        ([10], 0, [0]),
        ([1000, 1010], 1, [1]),
        ([1000, 1011], 1, [1, 0]),
        ([3, 1, 2], 1, [1, 2, 0]),
        ([3, 1, 2], 2, [2, 0, 1]),
    ],
)
def test_parts_stay_with_their_workers_unless_they_differ(
    sizes: list[int], worker: int, expected: list[int]
) -> None:
    assert turns(sizes, worker) == expected


@pytest.mark.parametrize(
    ("position", "place"),
    [
        (0, Place(0, 0, 0)),
        (4, Place(0, 0, 4)),
        (5, Place(0, 1, 0)),
        (7, Place(0, 1, 2)),
        (8, Place(1, 0, 0)),
        (21, Place(2, 1, 0)),
    ],
)
def test_a_place_is_the_pass_and_what_is_read_of_it(position: int, place: Place) -> None:
    assert place_of([5, 3], position) == place


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5).filter(lambda sizes: len(set(sizes)) > 1))
def test_workers_in_turn_see_every_example_equally_often(sizes: list[int]) -> None:
    seen: Counter[tuple[int, int]] = Counter()
    for worker in range(len(sizes)):
        order = turns(sizes, worker)
        in_order = [sizes[number] for number in order]
        for position in range(sum(sizes)):
            place = place_of(in_order, position)
            seen[order[place.turn], place.offset] += 1

    assert len(seen) == sum(sizes)
    assert set(seen.values()) == {len(sizes)}
