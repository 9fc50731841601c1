from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from trainjob_trainer import InvalidConfiguration
from trainjob_trainer.data.source import Cache, TrainingSource

EXAMPLES = 4


class Counted:
    """A function of the training data that knows how many examples have been read."""

    def __init__(self) -> None:
        self.read = 0

    def __call__(self) -> Any:
        def count(value: Any) -> Any:
            self.read += 1
            return value

        def read(value: Any) -> Any:
            return tf.ensure_shape(tf.numpy_function(count, [value], tf.int64), [])

        return tf.data.Dataset.range(EXAMPLES).map(read)


def taken(load: Counted, cache: Cache | None, step: int, count: int) -> list[int]:
    stream = TrainingSource(load, cache=cache).stream(step=step, global_batch=1, seed=1, shuffle=True)[0]
    return [int(value) for value in stream.take(count)]


@pytest.mark.parametrize("where", ["memory", "folder"])
@pytest.mark.parametrize("step", [0, 6])
def test_examples_are_read_once_and_come_in_the_same_order(where: str, step: int, tmp_path: Path) -> None:
    cached, plain = Counted(), Counted()
    place = str(tmp_path) if where == "folder" else where

    values = taken(cached, Cache.of(place, "digits-worker-0"), step, 14)

    assert values == taken(plain, None, step, 14)
    assert cached.read == EXAMPLES
    assert plain.read >= 14


def test_what_an_earlier_start_left_is_not_used(tmp_path: Path) -> None:
    taken(Counted(), Cache.of(str(tmp_path), "digits-worker-0"), 0, 2)  # torn: its lock file stays
    other = Counted()

    taken(other, Cache.of(str(tmp_path), "digits-worker-0"), 0, 8)

    assert other.read == EXAMPLES


def test_nothing_is_kept_unless_that_is_asked_for() -> None:
    assert Cache.of(None, "digits-worker-0") is None


def test_a_folder_that_can_not_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidConfiguration, match=r"cache: .*file/digits-worker-0 can't be written"):
        Cache.of(str(tmp_path / "file"), "digits-worker-0")


@pytest.mark.parametrize(
    "load",
    [lambda: tf.data.Dataset.range(4).repeat(), lambda step: tf.data.Dataset.range(step).repeat()],
    ids=["endless", "from a step"],
)
def test_endless_examples_are_not_kept(load: Any) -> None:
    with pytest.raises(InvalidConfiguration, match=r"cache: train\(\) has no end"):
        TrainingSource(load, cache=Cache())


def test_workers_that_read_for_themselves_have_memory_only() -> None:
    assert Cache.of("memory", "digits-chief-0", reads_here=False) is not None
    with pytest.raises(InvalidConfiguration, match=r"cache: /scratch would be one folder for all workers"):
        Cache.of("/scratch", "digits-chief-0", reads_here=False)
