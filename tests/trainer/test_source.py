"""Training data that workers read in parts, each for itself; the others are played by lists of sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from trainjob_trainer import InvalidConfiguration, Part
from trainjob_trainer.data.batches import worker_batches
from trainjob_trainer.data.source import Policy, TrainingSource, check_parts

EQUAL, UNEQUAL = (6, 6), (3, 9, 6)
BATCH = 6


def loader(sizes: tuple[int, ...]) -> Callable[..., Any]:
    """Part 1 holds 100, 101, ..."""

    def train(part: Part) -> Any:
        return tf.data.Dataset.range(100 * part.index, 100 * part.index + sizes[part.index])

    return train


def source(sizes: tuple[int, ...], worker: int) -> TrainingSource:
    return TrainingSource(loader(sizes), Part(worker, len(sizes)), lambda _: sizes)


def taken(sizes: tuple[int, ...], worker: int, count: int, step: int = 0, **how: Any) -> list[int]:
    stream = source(sizes, worker).stream(
        step=step, global_batch=BATCH, **{"seed": 1, "shuffle": True, **how}
    )
    return [int(value) for value in stream[0].take(count)]


def test_a_worker_reads_its_own_part_alone_where_parts_are_equal() -> None:
    values = taken(EQUAL, 1, 12)

    assert sorted(values[:6]) == sorted(values[6:]) == list(range(100, 106))
    assert values[:6] != values[6:]


def test_workers_read_unequal_parts_in_turn_and_each_example_comes_equally_often() -> None:
    passes = [taken(UNEQUAL, worker, 2 * sum(UNEQUAL)) for worker in range(3)]

    whole = [*range(3), *range(100, 109), *range(200, 206)]
    for values in passes:
        assert sorted(values[:18]) == sorted(values[18:]) == whole
        assert values[:18] != values[18:]
    assert set(passes[1][:9]) == set(range(100, 109))
    assert passes[1][:9] != [value for value in passes[0][:12] if value >= 100]


# Cycles begin after 9 steps; parts after 1.5, 6 and 9 of worker 0's, and 4.5, 7.5 and 9 of worker 1's.
@pytest.mark.parametrize(
    ("step", "worker", "shuffle"),
    [(1, 0, True), (2, 0, True), (6, 0, False), (9, 1, True), (8, 1, True), (14, 1, False), (20, 2, True)],
)
def test_a_worker_goes_on_where_it_was_left(step: int, worker: int, shuffle: bool) -> None:
    done = step * BATCH // 3
    whole = taken(UNEQUAL, worker, done + 20, shuffle=shuffle)

    assert taken(UNEQUAL, worker, 20, step=step, shuffle=shuffle) == whole[done:]


def test_a_part_that_shuffles_itself_goes_on_too() -> None:
    def train(part: Part) -> Any:
        return loader(UNEQUAL)(part).shuffle(9, seed=3)

    def values(step: int, count: int) -> list[int]:
        one = TrainingSource(train, Part(1, 3), lambda _: UNEQUAL)
        stream = one.stream(step=step, global_batch=BATCH, seed=1, shuffle=False)[0]
        return [int(value) for value in stream.take(count)]

    assert values(11, 20) == values(0, 42)[22:]


def test_an_epoch_is_all_parts_and_batches_are_full() -> None:
    one = source(UNEQUAL, 2)
    assert one.examples == 18

    share = one.share_of(Part(2, 3))
    stream = one.stream(step=0, global_batch=BATCH, seed=1, shuffle=False)[0]
    batches = worker_batches(stream, workers=share.count, worker=share.index, batch=2)
    assert [batch.numpy().tolist() for batch in batches.take(4)] == [
        [200, 201],
        [202, 203],
        [204, 205],
        [0, 1],
    ]


def test_one_process_reads_all_as_one_part() -> None:
    def train(part: Part) -> Any:
        return tf.data.Dataset.from_tensor_slices(part.of([5, 6, 7]))

    assert TrainingSource(train).examples == 3


def test_one_process_that_reads_for_others_takes_no_part() -> None:
    assert TrainingSource(lambda: tf.data.Dataset.range(4)).share_of(Part(1, 2)) == Part(1, 2)


def test_a_function_of_step_and_part_is_called_with_both() -> None:
    def train(step: int, part: Part) -> Any:
        return tf.data.Dataset.counter(tf.constant(1000 * part.index + step, tf.int64))

    one = TrainingSource(train, Part(1, 2))
    assert one.examples is None
    assert one.share_of(Part(1, 2)) == Part()
    stream = one.stream(step=7, global_batch=4, seed=1, shuffle=True)[0]
    assert [int(value) for value in stream.take(2)] == [1007, 1008]


def test_endless_parts_are_taken_as_they_come() -> None:
    def train(part: Part) -> Any:
        return loader(EQUAL)(part).repeat()

    one = TrainingSource(train, Part(1, 2), lambda _: [-1, -1])
    assert one.examples is None
    stream = one.stream(step=1, global_batch=BATCH, seed=1, shuffle=True)[0]
    assert [int(value) for value in stream.take(4)] == [103, 104, 105, 100]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([4, 0, 4], r"no examples for part 1 of 3 .*worker 1's: where there are fewer files than workers"),
        ([-1, 4], r"endless for some parts, and ends for part 1"),
    ],
)
def test_parts_that_can_not_be_trained_on_together_are_refused(sizes: list[int], words: str) -> None:
    with pytest.raises(InvalidConfiguration, match=words):
        check_parts(sizes)


def test_a_worker_without_data_is_named_by_all() -> None:
    for worker in (0, 1):
        with pytest.raises(InvalidConfiguration, match="worker 1's"):
            source((4, 0), worker)


@pytest.mark.parametrize(("shuffle", "sizes"), [(True, EQUAL), (False, UNEQUAL)])
def test_how_it_is_shared_is_said(shuffle: bool, sizes: tuple[int, ...]) -> None:
    policy = source(sizes, 1).policy(len(sizes), shuffle=shuffle)

    assert policy == Policy(len(sizes), list(sizes), True, shuffle, None)
