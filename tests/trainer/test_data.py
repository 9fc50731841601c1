from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from trainjob_trainer import InvalidConfiguration
from trainjob_trainer.data.batches import measure, read_on_cpu, shared_out, shuffle_buffer, worker_batches
from trainjob_trainer.data.source import TrainingSource

EXAMPLES = 10


def numbers(count: int = EXAMPLES) -> Any:
    return tf.data.Dataset.range(count)


def first(stream: Any, count: int) -> list[int]:
    return [int(value) for value in stream.take(count)]


def endless(
    load: Callable[[], Any] = numbers, *, seed: int = 1, position: int = 0, shuffle: bool = True
) -> Any:
    return TrainingSource(load).stream(step=position, global_batch=1, seed=seed, shuffle=shuffle)[0]


def batches(
    position: int, *, workers: int, worker: int, batch: int, count: int, seed: int = 7
) -> list[list[int]]:
    stream = endless(seed=seed, position=position)
    shares = worker_batches(stream, workers=workers, worker=worker, batch=batch)
    return [values.numpy().tolist() for values in shares.take(count)]


@settings(max_examples=25)
@given(position=st.integers(0, 45), seed=st.sampled_from([0, 1, 42]))
def test_a_stream_goes_on_where_it_was_left(position: int, seed: int) -> None:
    tf.random.set_seed(seed)

    whole = first(endless(seed=seed), 50)
    rest = first(endless(seed=seed, position=position), 50 - position)

    assert rest == whole[position:]


def test_every_epoch_has_each_example_once_in_another_order() -> None:
    values = first(endless(), 30)
    epochs = [tuple(values[start : start + EXAMPLES]) for start in (0, 10, 20)]

    assert all(sorted(epoch) == list(range(EXAMPLES)) for epoch in epochs)
    assert len(set(epochs)) == 3


def test_the_order_depends_on_the_seed_and_can_be_left_alone() -> None:
    one, other = (first(endless(seed=seed), 10) for seed in (1, 2))
    plain = first(endless(position=8, shuffle=False), 4)

    assert one != other
    assert plain == [8, 9, 0, 1]


@pytest.mark.parametrize("workers", [1, 2, 3, 6])
def test_workers_share_each_global_batch(workers: int) -> None:
    whole = batches(0, workers=1, worker=0, batch=6, count=5)

    shares = [batches(0, workers=workers, worker=i, batch=6 // workers, count=5) for i in range(workers)]

    together = [sorted(value for share in step for value in share) for step in zip(*shares, strict=True)]
    assert together == [sorted(batch) for batch in whole]
    assert all(len(share) == 6 // workers for worker in shares for share in worker)


def test_endless_data_is_taken_as_it_comes() -> None:
    def load() -> Any:
        return numbers(4).repeat()

    assert TrainingSource(load).examples is None
    assert first(endless(load, position=6), 4) == [2, 3, 0, 1]


def test_what_tensorflow_cannot_count_is_counted() -> None:
    assert measure(numbers().filter(lambda value: value % 2 == 0), "train").examples == 5


def test_counting_does_not_take_what_makes_examples_of_records() -> None:
    def parse(value: Any) -> Any:
        tf.debugging.Assert(False, ["parsed"])
        return value

    odd = numbers().filter(lambda value: value % 2 == 1)
    parsed = odd.map(parse, num_parallel_calls=2).shuffle(3).map(parse).prefetch(1)

    assert measure(parsed, "train").examples == 5


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (numbers(0), r"train\(\) has no examples"),
        (numbers().filter(lambda value: value > 99), r"train\(\) has no examples"),
        (numbers().batch(2), r"train\(\) returns batches"),
        (
            tf.data.Dataset.from_generator(lambda: iter([1]), output_types=tf.int32),
            r"train\(\) does not say the shapes",
        ),
        ([1, 2], r"train\(\) must return a tf.data.Dataset, got list"),
    ],
)
def test_unusable_data_is_refused(dataset: Any, words: str) -> None:
    with pytest.raises(InvalidConfiguration, match=words):
        measure(dataset, "train")


def test_the_shuffle_buffer_holds_all_or_what_fits() -> None:
    big = tf.data.Dataset.from_tensors(np.zeros((1024, 1024), "float32")).repeat(1000)

    assert shuffle_buffer(measure(numbers(), "train")) == EXAMPLES
    assert shuffle_buffer(measure(big, "train")) == 64


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
