import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainjob_trainer.plain import rows


def batches(examples: int, size: int) -> tf.data.Dataset:
    return tf.data.Dataset.range(examples).map(lambda i: (i, {"label": -i})).batch(size)


def listed(dataset: tf.data.Dataset) -> list[list[int]]:
    return [batch.numpy().tolist() for batch, _ in dataset]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(2, 5), st.integers(1, 40))
def test_training_batches_have_equal_parts_and_evaluation_counts_every_row_once(
    replicas: int, factor: int, examples: int
) -> None:
    size = replicas * factor
    data = batches(examples + replicas, size)
    count = int(data.cardinality())

    trained = listed(rows.trim(rows.fill_rest(data, replicas, repeat=True), replicas))
    assert len(trained) == count
    assert all(batch and len(batch) % replicas == 0 for batch in trained)

    whole = rows.fill_rest(data, replicas, repeat=False)
    assert int(whole.cardinality()) in (count, tf.data.UNKNOWN_CARDINALITY)
    parts = [listed(rows.part(whole, first=one, count=1, of=replicas)) for one in range(replicas)]
    assert all(len(part) == count and all(part) for part in parts)
    assert sorted(row for part in parts for batch in part for row in batch) == list(
        range(examples + replicas)
    )


def test_parts_are_in_order_and_one_element_a_device() -> None:
    parts = listed(rows.part(batches(8, 8), first=2, count=2, of=4))
    assert parts == [[4, 5], [6, 7]]


@pytest.mark.parametrize(("drop", "size"), [(False, 32), (True, 32)])
def test_the_size_of_a_full_batch_is_known(drop: bool, size: int) -> None:
    data = tf.data.Dataset.range(100).batch(32, drop_remainder=drop).prefetch(1)
    assert rows.static_batch_size(data) == size


def test_what_has_no_rows_is_not_ours() -> None:
    assert not rows.has_rows(tf.data.Dataset.range(3))
    assert rows.has_rows(batches(3, 2))
