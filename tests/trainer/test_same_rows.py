"""What workers have read is the same, other, or may be the same by chance."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from trainjob_trainer.keras.same_rows import CERTAIN, Component, SameRows, Verdict, augments_at_random, judge
from trainjob_trainer.task import Task

SURE, UNSURE, CONSTANT = int(CERTAIN) + 1, 3, 0


def worker(*components: tuple[int, int]) -> list[Component]:
    return [Component(*one) for one in components]


@pytest.mark.parametrize(
    ("first", "other", "after_a_call", "after_an_epoch"),
    [
        (worker((1, SURE), (2, SURE)), worker((1, SURE), (2, SURE)), Verdict.SAME, Verdict.SAME),
        (worker((1, SURE), (2, SURE)), worker((8, SURE), (9, SURE)), Verdict.OTHER, Verdict.OTHER),
        # Images are augmented, and the labels tell the rows apart.
        (worker((1, SURE), (2, SURE)), worker((8, SURE), (2, SURE)), Verdict.SAME, Verdict.SAME),
        # Two labels of two examples say little.
        (worker((1, SURE), (2, UNSURE)), worker((8, SURE), (2, UNSURE)), Verdict.OPEN, Verdict.OPEN),
        # All rows of a call may have one label, where they are sorted; all of an epoch say nothing.
        (worker((1, SURE), (2, CONSTANT)), worker((8, SURE), (2, CONSTANT)), Verdict.OPEN, Verdict.OTHER),
        (worker((1, CONSTANT)), worker((1, CONSTANT)), Verdict.SAME, Verdict.SAME),
        (worker((1, CONSTANT)), worker((2, CONSTANT)), Verdict.OTHER, Verdict.OTHER),
        (worker(), worker(), Verdict.SAME, Verdict.SAME),
    ],
)
def test_rows_are_judged(
    first: list[Component], other: list[Component], after_a_call: Verdict, after_an_epoch: Verdict
) -> None:
    assert judge(first, other, is_epoch=False) is after_a_call
    assert judge(first, other, is_epoch=True) is after_an_epoch


@pytest.mark.parametrize(
    ("rows", "orders"),
    [
        ([], 0),
        ([b"a"] * 9, 0),
        ([b"a", b"b"], 0),
        ([b"a", b"b"] * 8, 9),
        ([bytes([n]) for n in range(16)], 30),
    ],
)
def test_a_component_knows_how_many_orders_it_tells_apart(rows: list[bytes], orders: int) -> None:
    assert Component.of(rows).orders == orders


def read(dataset: Any, **arguments: Any) -> tuple[list[Any], dict[int, Any]]:
    rows = SameRows(None, Task("worker", 0, {}), **arguments)
    passed = list(rows.hashed(dataset))
    return passed, rows._rows


def test_any_kind_of_component_is_hashed_by_rows() -> None:
    element = {
        "text": tf.constant(["a", "b", "a"]),
        "ragged": tf.ragged.constant([[1.0], [2.0, 3.0], []]),
        "sparse": tf.sparse.from_dense(np.eye(3, dtype="float32")),
        "number": tf.constant(7),
        "truth": (tf.constant([True, False, True]), tf.zeros([3, 0])),
    }
    (passed,), hashed = read(tf.data.Dataset.from_tensors(element))
    tf.nest.assert_same_structure(passed, element, expand_composites=True)
    text = hashed[0][-2]
    assert len(hashed[0]) == len(tf.nest.flatten(element, expand_composites=True))
    assert text.shape == (3, 8)
    assert (text[0] == text[2]).all()
    assert (text[0] != text[1]).any()


def test_what_may_be_missing_is_not_hashed() -> None:
    data = tf.data.Dataset.from_tensors((tf.ones([2]), None, tf.experimental.Optional.from_value(1)))
    (passed,), hashed = read(data)
    assert passed[1] is None
    assert len(hashed[0]) == 1


def test_the_first_elements_and_some_others_of_each_epoch_are_hashed() -> None:
    _, hashed = read(tf.data.Dataset.range(300).batch(1), of_epoch=100)
    for epoch in range(3):
        own = [number - 100 * epoch for number in hashed if number // 100 == epoch]
        assert own[:2] == [0, 1]
        assert 2 < len(own) < 20


def test_of_endless_data_ever_fewer_are_hashed() -> None:
    _, hashed = read(tf.data.Dataset.range(1000).batch(1))
    assert sum(number < 100 for number in hashed) > 4
    assert sum(number >= 100 for number in hashed) < 20


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda data: data.map(lambda x: x + tf.random.uniform([]), num_parallel_calls=2).batch(2), True),
        (lambda data: data.map(lambda x: x + tf.random.uniform([])).batch(2), False),
        (lambda data: data.map(lambda x: x + 1.0, num_parallel_calls=2).batch(2), False),
        (
            lambda data: data.map(
                lambda x: tf.cond(x > 0, lambda: tf.random.normal([]), lambda: x), num_parallel_calls=2
            ),
            True,
        ),
    ],
)
def test_random_numbers_of_a_parallel_map_are_found(build: Any, expected: bool) -> None:
    assert augments_at_random(build(tf.data.Dataset.from_tensor_slices(tf.ones([4])))) is expected
