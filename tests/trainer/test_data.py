from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from trainjob_trainer.keras.pipelines import (
    batch_size_of,
    count_elements,
    read_on_cpu,
    shared_out,
    shuffle_buffer,
)

EXAMPLES = 10


def numbers(count: int = EXAMPLES) -> Any:
    return tf.data.Dataset.range(count)


def test_counting_does_not_take_what_makes_examples_of_records() -> None:
    def parse(value: Any) -> Any:
        tf.debugging.Assert(False, ["parsed"])
        return value

    odd = numbers().filter(lambda value: value % 2 == 1)
    parsed = odd.map(parse, num_parallel_calls=2).shuffle(3).map(parse).prefetch(1)

    assert count_elements(parsed) == 5


def test_the_shuffle_buffer_holds_all_or_what_fits() -> None:
    big = tf.data.Dataset.from_tensors(np.zeros((1024, 1024), "float32")).repeat(1000)

    assert shuffle_buffer(numbers()) == EXAMPLES
    assert shuffle_buffer(big) == 64


def generated() -> Any:
    spec = tf.TensorSpec([None, 3]), tf.TensorSpec([None])
    return tf.data.Dataset.from_generator(lambda: iter([]), output_signature=spec)


IMAGES = tf.data.Dataset.from_tensors((np.zeros((28, 28)), np.zeros((28, 28)))).repeat(9)


@pytest.mark.parametrize(
    ("dataset", "size"),
    [
        (numbers(), None),
        (IMAGES, None),
        (IMAGES.batch(4).unbatch(), None),
        (IMAGES.batch(4), 4),
        (IMAGES.batch(4, drop_remainder=True).map(lambda x, y: (x, y)).prefetch(1), 4),
        (IMAGES.batch(4).shuffle(3).repeat(), 4),
        (IMAGES.batch(4).rebatch(3), 0),
        (generated(), 0),
        (numbers().map(lambda n: tf.strings.split(tf.strings.as_string(n))), 0),
    ],
)
def test_batches_are_told_from_examples(dataset: Any, size: int | None) -> None:
    assert batch_size_of(dataset) == size


@pytest.mark.parametrize(
    "distributed",
    [
        lambda strategy, data: shared_out(strategy, lambda _: data),
        lambda strategy, data: read_on_cpu(strategy, strategy.experimental_distribute_dataset(data)),
    ],
)
def test_a_workers_only_processor_reads_its_data_set_without_a_copy_ahead(distributed: Any) -> None:
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])

    iterator = iter(distributed(strategy, numbers().batch(2)))

    assert [next(iterator).numpy().tolist() for _ in range(5)] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert "MultiDevice" not in type(iterator._iterators[0]._iterator).__name__
