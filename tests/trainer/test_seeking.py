from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from trainjob_trainer import InvalidConfiguration
from trainjob_trainer.data.batches import ReadOver, reorders_itself, worker_batches
from trainjob_trainer.data.source import STEP, TrainingSource, takes

EXAMPLES = 10


def numbers() -> Any:
    return tf.data.Dataset.range(EXAMPLES)


def from_step(step: int) -> Any:
    return tf.data.Dataset.counter(tf.constant(step * 4, tf.int64))


def first(stream: Any, count: int) -> list[int]:
    return [int(value) for value in stream.take(count)]


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (numbers, False),
        (from_step, True),
        (lambda *, step: step, True),
        (lambda split="train": split, False),
        (functools.partial(from_step, step=3), True),
        (dict, False),
    ],
)
def test_a_parameter_named_step_is_asked_for(load: Callable[..., Any], expected: bool) -> None:
    assert takes(load, STEP) is expected


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (numbers(), False),
        (numbers().shuffle(4, reshuffle_each_iteration=False).map(lambda x: x), False),
        (numbers().shuffle(4).map(lambda x: x).cache(), True),
        (tf.data.Dataset.zip((numbers(), numbers().shuffle(4))), True),
        (numbers().concatenate(numbers().shuffle(4, seed=1)).prefetch(2), True),
    ],
)
def test_a_pipeline_that_shuffles_anew_is_noticed(dataset: Any, expected: bool) -> None:
    assert reorders_itself(dataset) is expected


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("step", [1, 2, 6, 7])
def test_ones_own_shuffle_goes_on_as_if_never_interrupted(step: int, shuffle: bool) -> None:
    def load() -> Any:
        return numbers().shuffle(EXAMPLES, seed=3)

    def stream(step: int) -> Any:
        return TrainingSource(load).stream(step=step, global_batch=4, seed=1, shuffle=shuffle)

    assert first(stream(step), 12) == first(stream(0), 12 + 4 * step)[4 * step :]


def test_a_function_of_the_step_is_called_with_it_and_nothing_is_read_over() -> None:
    source = TrainingSource(from_step)

    assert source.examples is None
    assert first(source.stream(step=5, global_batch=4, seed=1, shuffle=True), 3) == [20, 21, 22]
    assert source.read_over(5, 4) is None


def test_what_begins_at_a_step_must_not_end() -> None:
    with pytest.raises(InvalidConfiguration, match=r"train\(step\) must return examples without end"):
        TrainingSource(lambda step: numbers().skip(step)).at(2)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.5, []),
        (
            2.5,
            [
                "it took 2.5 s to read train() up to step 3 (2 examples); a train(step) that begins there "
                "saves that"
            ],
        ),
    ],
)
def test_reading_up_to_a_step_is_told_when_it_takes_long(seconds: float, told: list[str]) -> None:
    clock, lines = iter([100.0, 100.0 + seconds]), list[str]()
    source = TrainingSource(numbers)
    expected = source.read_over(3, 4)
    assert expected is not None
    assert expected._examples == 2  # of the second epoch
    stream = source.stream(step=3, global_batch=4, seed=1, shuffle=True)
    teller = ReadOver(3, 2, lines.append, lambda: next(clock))

    batches = worker_batches(stream, workers=2, worker=1, batch=2, read_over=teller)

    plain = worker_batches(stream, workers=2, worker=1, batch=2)
    assert [b.numpy().tolist() for b in batches.take(5)] == [b.numpy().tolist() for b in plain.take(5)]
    assert lines == told


def test_a_fresh_start_reads_nothing_over() -> None:
    assert TrainingSource(numbers).read_over(0, 4) is None
