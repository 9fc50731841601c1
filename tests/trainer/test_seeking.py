"""Where the training data begins after a restart: what is read again, and what needn't be."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from trainjob_trainer.keras.pipelines import (
    Rereading,
    count_elements,
    depends_on_script,
    is_fixed,
    pass_over,
    reshuffles,
    whole_passes,
)
from trainjob_trainer.reporting.progress import ProgressFile

EXAMPLES = 10


def numbers() -> Any:
    return tf.data.Dataset.range(EXAMPLES)


def shuffled(seed: int = 1, **words: Any) -> Any:
    return numbers().shuffle(EXAMPLES, seed=seed, **words)


def from_generator() -> Any:
    return tf.data.Dataset.from_generator(lambda: iter([1, 2]), output_signature=tf.TensorSpec((), tf.int64))


def flat(batches: Any) -> list[int]:
    return [int(value) for batch in batches for value in tf.reshape(batch, [-1])]


def first(stream: Any, count: int) -> list[int]:
    return flat(stream.take(count))


PIPELINES: dict[str, Callable[[], Any]] = {
    "plain": numbers,
    "not again": lambda: shuffled(reshuffle_each_iteration=False).map(lambda x: x),
    "batch": lambda: shuffled().batch(3).prefetch(2),
    "filter": lambda: shuffled().filter(lambda x: x > 3).batch(3),
    "zip": lambda: tf.data.Dataset.zip((numbers(), shuffled())).map(lambda a, b: a * 10 + b),
    "concatenate": lambda: numbers().concatenate(shuffled()).batch(4),
    "both concatenated": lambda: shuffled().concatenate(shuffled(2)),
    "two shuffles": lambda: shuffled().batch(2).shuffle(3, seed=2),
    "repeated": lambda: shuffled().repeat(3).batch(4),
    "cached before": lambda: numbers().cache().shuffle(4, seed=1),
    "interleaved": lambda: shuffled().interleave(tf.data.Dataset.from_tensors, cycle_length=2),
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("opened", [0, 2])
def test_whole_passes_are_passed_over_without_reading(name: str, opened: int) -> None:
    def opened_and_read(dataset: Any) -> None:
        for number in range(3):
            flat(dataset)
            if number < opened:
                iter(dataset)

    tf.random.set_seed(3)
    expected = PIPELINES[name]()
    opened_and_read(expected)
    tf.random.set_seed(3)
    found = PIPELINES[name]()
    assert pass_over(reshuffles(found), 3, opened)
    assert [flat(found) for _ in range(2)] == [flat(expected) for _ in range(2)]


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (numbers(), 0),
        (shuffled(reshuffle_each_iteration=False), 0),
        (tf.data.Dataset.zip((numbers(), shuffled())), 1),
        (shuffled().concatenate(shuffled(2)).prefetch(2), 2),
        (shuffled().map(lambda x: x).cache(), 1),
        (shuffled().repeat(), 1),
    ],
)
def test_a_pipeline_that_shuffles_anew_is_noticed(dataset: Any, expected: int) -> None:
    assert len(reshuffles(dataset)) == expected


@pytest.mark.parametrize("dataset", [shuffled().cache(), shuffled().repeat()])
def test_what_only_reading_shows_is_not_passed_over(dataset: Any) -> None:
    assert not pass_over(reshuffles(dataset), 1)
    assert pass_over(reshuffles(dataset), 0, 1)


ENDLESS: dict[str, tuple[Callable[[], Any], int]] = {
    "batches": (lambda: shuffled().batch(3).repeat(), 3),
    "rows": (lambda: shuffled().repeat().batch(4).map(lambda x: x), 4 * 2),
    "even rows": (lambda: shuffled().repeat().batch(5).prefetch(2), 1),
    "without a shuffle": (lambda: numbers().repeat().batch(5), 1),
    "small batches of batches": (lambda: shuffled().repeat().batch(2).batch(3, drop_remainder=True), 4),
    "finite": (lambda: shuffled().batch(5).repeat(40), 1),
}
"""By name, and the most batches that are left to read."""


@pytest.mark.parametrize("taken", [0, 1, 4, 7, 30, 63])
@pytest.mark.parametrize("name", ENDLESS)
def test_endless_data_goes_on_where_it_was(name: str, taken: int) -> None:
    build, most = ENDLESS[name]
    tf.random.set_seed(3)
    expected = first(build().skip(taken), 9)
    tf.random.set_seed(3)
    dataset = build()
    found, passes, rest = whole_passes(dataset, taken)
    assert pass_over(found, passes)
    assert first(dataset.skip(rest), 9) == expected
    assert rest <= max(most, 3)


@pytest.mark.parametrize(
    "dataset",
    [
        numbers().repeat().shuffle(4, seed=1),
        from_generator().apply(tf.data.experimental.assert_cardinality(2)).repeat(),
        numbers().filter(lambda x: x > 3).repeat(),
        shuffled().cache().repeat(),
        numbers(),
    ],
)
def test_other_data_is_read_again(dataset: Any) -> None:
    assert whole_passes(dataset, 24) == ([], 0, 24)


def test_what_the_script_may_change_is_known() -> None:
    variable = tf.Variable(1, dtype=tf.int64)
    assert depends_on_script(numbers().map(lambda x: x + variable).batch(2).repeat())
    assert depends_on_script(from_generator().batch(2))
    assert depends_on_script(numbers().map(lambda x: tf.numpy_function(lambda a: a, [x], tf.int64)))
    assert not depends_on_script(shuffled().map(lambda x: x + 1).batch(2))


@pytest.mark.parametrize(
    "dataset",
    [
        numbers().filter(lambda x: x > 2).shuffle(4).map(lambda x: x).batch(3),
        numbers().filter(lambda x: x > 2).batch(3, drop_remainder=True).prefetch(1),
        numbers().filter(lambda x: x > 2).batch(2).batch(3),
    ],
)
def test_elements_are_counted_where_they_are_first_told(dataset: Any) -> None:
    order = [one.stage for one in reshuffles(dataset)]
    assert count_elements(dataset) == len(list(dataset))
    assert len(order) < 2


class Seen(ProgressFile):
    def __init__(self) -> None:
        super().__init__(None)
        self.reports: list[tuple[str, int | None]] = []

    def update(self, **changes: Any) -> None:
        super().update(**changes)
        self.reports.append((self.last.state, self.last.reread_batches))


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.01, []),
        (
            0.6,
            [
                "rereading the 40 batches that were trained before the restart: 2 took 1.2 s, the others "
                "take about 23 s; do that"
            ],
        ),
    ],
)
def test_reading_again_is_reported_and_told_when_it_takes_long(seconds: float, told: list[str]) -> None:
    times = itertools.count()
    progress, lines = Seen(), list[str]()
    progress.update(state="preparing")
    iterator = iter(numbers().repeat(2))
    rereading = Rereading(40, progress, "; do that", lines.append, lambda: next(times) * seconds)
    assert rereading.read(iterator, 13) == 13
    assert int(next(iterator)) == 3
    assert progress.reports[1] == ("rereading", 1)
    assert progress.reports[-2:] == [("rereading", 13), ("preparing", None)]
    assert lines == told
    assert rereading.read(iterator, 13) == 6, "the data has ended"


def plus_noise(x: Any) -> Any:
    return x + tf.random.normal([])


ROWS = tf.data.Dataset.from_tensor_slices(tf.range(8.0))


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: ROWS.map(lambda x: x + 1).cache().batch(2).prefetch(1), True),
        (lambda: tf.data.Dataset.zip((ROWS, tf.data.Dataset.range(8))).repeat().take(9), True),
        (lambda: ROWS.shuffle(8, seed=1, reshuffle_each_iteration=False), True),
        (lambda: ROWS.shuffle(8, seed=1), False),
        (lambda: ROWS.map(plus_noise), False),
        (lambda: ROWS.map(lambda x: tf.cond(x > 1, lambda: plus_noise(x), lambda: x)), False),
        (lambda: ROWS.map(lambda x: tf.numpy_function(lambda y: y, [x], tf.float32)), False),
        (lambda: tf.data.Dataset.from_tensor_slices(["a"]).map(tf.io.read_file), False),
        (lambda: tf.data.Dataset.from_tensor_slices(["a"]).interleave(tf.data.TFRecordDataset), False),
        (lambda: tf.data.TFRecordDataset("a"), False),
        (lambda: tf.data.TextLineDataset("a"), False),
        (lambda: tf.data.Dataset.random(1), False),
    ],
)
def test_what_stays_the_same_in_each_pass_is_known(build: Any, expected: bool) -> None:
    assert is_fixed(build()) is expected


def test_a_variable_may_change_between_passes() -> None:
    variable = tf.Variable(1.0)
    assert not is_fixed(ROWS.map(lambda x: x * variable))
