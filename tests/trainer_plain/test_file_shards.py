"""Data of which each worker reads its own files: what it reads, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from trainjob_trainer.keras.data import shard, why_not_by_file
from trainjob_trainer.keras.pipelines import Part


def write(folder: Path, rows_of_files: Sequence[int]) -> list[str]:
    """Files of numbered records, as many as it says; the first file has the first records."""
    names, number = [], 0
    for file, rows in enumerate(rows_of_files):
        names.append(str(folder / f"{file}.tfrecord"))
        with tf.io.TFRecordWriter(names[-1]) as writer:
            for _ in range(rows):
                writer.write(str(number).encode())
                number += 1
    return names


def parsed(records: Any) -> Any:
    return records.map(lambda text: tf.strings.to_number(text, tf.int64)[None])


def listed(names: list[str], **shuffled: Any) -> Any:
    files = tf.data.Dataset.list_files(names, **(shuffled or {"shuffle": False}))
    return files.interleave(tf.data.TFRecordDataset, cycle_length=2)


READERS: dict[str, Callable[[list[str]], Any]] = {
    "listed": listed,
    "shuffled with a seed": lambda names: listed(names, seed=3),
    "shuffled without one": lambda names: listed(names, shuffle=True),
    "one reader of all": tf.data.TFRecordDataset,
    "in parallel": lambda names: tf.data.TFRecordDataset(names, num_parallel_reads=2),
    "flat": lambda names: tf.data.Dataset.from_tensor_slices(names).flat_map(tf.data.TFRecordDataset),
    "two readers": lambda names: tf.data.TFRecordDataset(names[:3]).concatenate(
        tf.data.TFRecordDataset(names[3:])
    ),
}


def by_file(data: Any) -> Any:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    return data.with_options(options)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("workers", [2, 3])
def test_every_record_is_one_workers(reader: str, workers: int, tmp_path: Path) -> None:
    data = parsed(READERS[reader](write(tmp_path, [3, 5, 2, 4, 1, 2]))).batch(4).prefetch(1)
    parts = [shard(data, Part(worker, workers)) for worker in range(workers)]
    seen = [[int(one) for batch in part for one in batch.numpy().ravel()] for part in parts]
    assert sorted(one for part in seen for one in part) == list(range(17))
    assert all(seen)


@pytest.mark.parametrize("data", [tf.data.Dataset.range(8).batch(2), tf.data.Dataset.from_tensors([[1.0]])])
def test_data_without_files_is_refused(data: Any) -> None:
    with pytest.raises(tf.errors.OpError):
        shard(data, Part(0, 2))


@pytest.mark.parametrize(
    ("steps", "length", "data", "size", "why"),
    [
        (3, None, tf.data.Dataset.range(8).batch(4), 4, None),
        (3, None, tf.data.Dataset.range(8).batch(4).prefetch(1), 4, None),
        (3, None, tf.data.Dataset.range(8), 4, ""),
        (None, 2, tf.data.Dataset.range(8).batch(4), 4, None),
        (None, None, tf.data.Dataset.range(8).batch(4), 4, "steps_per_epoch"),
        (3, None, tf.data.Dataset.range(8).batch(3), 3, "batches that 2 devices divide"),
        (3, None, tf.data.Dataset.range(8).batch(4), None, "batches that 2 devices divide"),
        (3, None, tf.data.Dataset.range(8).map(tf.range).padded_batch(4), 4, "one shape"),
    ],
)
def test_each_worker_reads_all_where_its_own_files_make_no_equal_steps(
    steps: int | None, length: int | None, data: Any, size: int | None, why: str | None
) -> None:
    epoch: Any = SimpleNamespace(
        steps_per_epoch=steps,
        data_adapter=SimpleNamespace(num_batches=length),
        _distribute_strategy=SimpleNamespace(num_replicas_in_sync=2),
    )
    found = why_not_by_file(epoch, by_file(data), size)
    assert found == why if not why else why in str(found)
    assert why_not_by_file(epoch, data, size) == ""
