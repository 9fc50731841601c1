from fractions import Fraction
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.python.autograph.pyct.transpiler import PyToPy

from trainjob_trainer.keras import data as rows
from trainjob_trainer.keras.pipelines import count_elements
from trainjob_trainer.parameter_server import shuffled_passes


def batches(examples: int, size: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(examples).map(lambda i: (i, {"label": -i})).batch(size)


def parts_of(data: tf.data.Dataset, replicas: int, *, weighed: bool = False) -> list[list[Any]]:
    return [
        list(rows.part(data, first=one, count=1, of=replicas, weighed=weighed)) for one in range(replicas)
    ]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(2, 5), st.integers(1, 40))
@pytest.mark.nightly
def test_a_prediction_has_every_row_once(replicas: int, factor: int, examples: int) -> None:
    data = batches(examples + replicas, replicas * factor)
    count = int(data.cardinality())

    whole = rows.fill_rest(data, replicas)
    assert int(whole.cardinality()) in (count, tf.data.UNKNOWN_CARDINALITY)
    parts = [[batch.numpy().tolist() for batch, _ in part] for part in parts_of(whole, replicas)]
    assert all(len(part) == count and all(part) for part in parts)
    assert sorted(row for part in parts for batch in part for row in batch) == list(
        range(examples + replicas)
    )


@given(st.integers(1, 60), st.integers(1, 9))
def test_in_training_every_row_counts_for_as_much(total: int, replicas: int) -> None:
    counted = [Fraction(0)] * total
    for number in range(replicas):
        begin, end, copies = rows.part_of(total, number, replicas)
        assert begin < end
        share = Fraction(end - begin, total * copies)
        for row in range(begin, end):
            counted[row] += share / (end - begin)
    assert counted == [Fraction(1, total)] * total


@pytest.mark.parametrize(
    ("total", "replicas", "parts"),
    [
        (8, 2, [(0, 4, 1), (4, 8, 1)]),
        (5, 2, [(0, 2, 1), (2, 5, 1)]),
        (32, 3, [(0, 10, 1), (10, 21, 1), (21, 32, 1)]),
        (2, 2, [(0, 1, 1), (1, 2, 1)]),
        (1, 2, [(0, 1, 2), (0, 1, 2)]),
        (2, 3, [(0, 1, 2), (0, 1, 2), (1, 2, 1)]),
        (3, 4, [(0, 1, 2), (0, 1, 2), (1, 2, 1), (2, 3, 1)]),
    ],
)
def test_parts(total: int, replicas: int, parts: list[tuple[int, int, int]]) -> None:
    assert [rows.part_of(total, number, replicas) for number in range(replicas)] == parts


def test_training_parts_carry_their_share() -> None:
    first, second = parts_of(batches(5, 3), 2, weighed=True)
    assert [(part.rows[0].numpy().tolist(), float(part.share)) for part in first] == [
        ([0], pytest.approx(1 / 3)),
        ([3], 0.5),
    ]
    assert [part.rows[0].numpy().tolist() for part in second] == [[1, 2], [4]]


@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
def test_metrics_count_every_row_once(replicas: int) -> None:
    parts = [
        list(rows.part(batches(10, 3), first=one, count=1, of=replicas, weighed=True, fills=True))
        for one in range(replicas)
    ]
    counted = [row for of in parts for part in of if part.copies[1] for row in part.rows[0].numpy()]
    assert sorted(counted) == list(range(10))
    assert [round(sum(float(part.share) for part in batch), 6) for batch in zip(*parts, strict=True)] == [
        1.0
    ] * 4


def padded(lengths: list[int], size: int) -> tf.data.Dataset:
    examples = tf.data.Dataset.from_generator(
        lambda: ([one] * one for one in lengths), output_signature=tf.TensorSpec((None,), tf.int32)
    )
    return examples.padded_batch(size)


@pytest.mark.parametrize(
    ("lengths", "first", "second"),
    [
        ([2, 1, 2, 2, 2], [[[2, 2]], [[2, 2]]], [[[1, 0], [2, 2]], [[2, 2]]]),
        ([2, 1, 2, 2, 1], [[[2, 2], [1, 0]], []], [[[2, 2], [2, 2]], [[1]]]),
        ([2, 1, 2, 2, 1, 1], [[[2, 2], [1, 0]], [[1]]], [[[2, 2], [2, 2]], [[1]]]),
    ],
)
def test_only_batches_of_one_width_are_joined(lengths: list[int], first: Any, second: Any) -> None:
    parts = parts_of(rows.fill_rest(padded(lengths, 4), 2), 2)
    assert [[batch.numpy().tolist() for batch in part] for part in parts] == [first, second]


def test_ragged_batches_are_cut_by_rows() -> None:
    data = tf.data.Dataset.from_tensors(tf.ragged.constant([[1], [2, 3], []]))
    assert [[batch.to_list() for batch in part] for part in parts_of(data, 2)] == [[[[1]]], [[[2, 3], []]]]


@pytest.mark.parametrize(("size", "drop", "expected"), [(8, True, True), (8, False, False), (7, True, False)])
def test_equal_parts_are_known_beforehand(size: int, drop: bool, expected: bool) -> None:
    assert rows.are_equal(tf.data.Dataset.range(16).batch(size, drop_remainder=drop), 2) is expected


def test_parts_are_in_order_and_one_element_a_device() -> None:
    parts = rows.part(batches(8, 8), first=2, count=2, of=4)
    assert [batch.numpy().tolist() for batch, _ in parts] == [[4, 5], [6, 7]]


@pytest.mark.parametrize(("drop", "size"), [(False, 32), (True, 32)])
def test_the_size_of_a_full_batch_is_known(drop: bool, size: int) -> None:
    data = tf.data.Dataset.range(100).batch(32, drop_remainder=drop).prefetch(1)
    assert rows.static_batch_size(data) == size


def test_what_has_no_rows_is_not_ours() -> None:
    assert not rows.has_rows(tf.data.Dataset.range(3))
    assert rows.has_rows(batches(3, 2))


def test_autograph_rewrites_no_function_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten: list[str] = []
    rewrite = PyToPy.transform_function

    def transform_function(self: Any, function: Any, context: Any) -> Any:
        rewritten.append(f"{function.__module__}.{function.__qualname__}")
        return rewrite(self, function, context)

    monkeypatch.setattr(PyToPy, "transform_function", transform_function)
    data = tf.data.Dataset.range(10).filter(lambda number: number >= 0)
    assert rewritten, "a user's function is, with all that it calls"
    rewritten.clear()

    batched = data.batch(4)
    for parts in (
        rows.part(rows.fill_rest(batched, 3), first=1, count=1, of=3),
        rows.part(batched, first=0, count=2, of=3, weighed=True),
        rows.part(batched, first=0, count=1, of=3, weighed=True),
    ):
        assert list(parts)
    assert count_elements(data) == 10
    assert len(list(shuffled_passes(data, 2, 0).take(12))) == 12
    assert not rewritten
