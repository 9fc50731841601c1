"""Data of which each worker reads its own files: what it reads, and what all take together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from trainjob_trainer.data.batches import Part
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.plain import file_shards
from trainjob_trainer.plain.batches import OwnFiles
from trainjob_trainer.plain.calls import Shapes
from trainjob_trainer.plain.file_shards import UNKNOWN, Found, Plan


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


def numbers(batches: Any) -> list[int]:
    return [int(one) for batch in batches for one in batch.numpy().ravel()]


def rows_of(batch: Any) -> Any:
    return tf.shape(tf.nest.flatten(batch)[0], out_type=tf.int64)[0]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("workers", [2, 3])
def test_every_record_is_one_workers(reader: str, workers: int, tmp_path: Path) -> None:
    data = parsed(READERS[reader](write(tmp_path, [3, 5, 2, 4, 1, 2]))).batch(4).prefetch(1)
    parts = [file_shards.shard(data, Part(worker, workers)) for worker in range(workers)]
    seen = [numbers(part) for part in parts]
    assert sorted(one for part in seen for one in part) == list(range(17))
    assert all(seen)
    for worker, part in enumerate(seen):
        assert file_shards.count_rows(data, Part(worker, workers), 4, rows_of) == len(part)
        assert file_shards.count_batches(data, Part(worker, workers)) == -(-len(part) // 4)
    assert sum(file_shards.count_files(parts[0]) or []) == 6


@pytest.mark.parametrize(
    ("batches", "rows"),
    [
        (lambda records: parsed(records).batch(4, drop_remainder=True), [8, 4]),
        (lambda records: parsed(records).batch(4, num_parallel_calls=2), [8, 7]),
        (lambda records: parsed(records).filter(lambda one: one[0] < 9).batch(4), [5, 4]),
        (lambda records: parsed(records).batch(4).filter(lambda one: one[0, 0] > 0), [4, 7]),
        (lambda records: parsed(records).shuffle(9).batch(4).map(lambda one: one + 1).prefetch(2), [8, 7]),
    ],
)
def test_rows_are_counted_as_the_pipeline_has_them(batches: Any, rows: list[int], tmp_path: Path) -> None:
    data = batches(tf.data.TFRecordDataset(write(tmp_path, [5, 4, 3, 3])))
    assert [file_shards.count_rows(data, Part(worker, 2), 4, rows_of) for worker in (0, 1)] == rows


def test_records_are_counted_without_parsing_them(tmp_path: Path) -> None:
    parsed_here: list[Any] = []

    def parse(text: Any) -> Any:
        tf.py_function(parsed_here.append, [text], [])
        return tf.ones([1])

    data = tf.data.TFRecordDataset(write(tmp_path, [2, 3])).map(parse).batch(2).map(lambda one: -one)
    assert file_shards.count_rows(data, Part(1, 2), 2, rows_of) == 3
    assert parsed_here == []


@pytest.mark.parametrize("data", [tf.data.Dataset.range(8).batch(2), tf.data.Dataset.from_tensors([[1.0]])])
def test_data_without_files_is_refused(data: Any) -> None:
    with pytest.raises(tf.errors.OpError):
        file_shards.shard(data, Part(0, 2))


def test_of_each_list_of_files_a_worker_reads_every_nth() -> None:
    assert [file_shards.files_of([3, 3], Part(worker, 2)) for worker in (0, 1)] == [4, 2]


def test_files_that_are_listed_over_and_over_have_no_number(tmp_path: Path) -> None:
    files = tf.data.Dataset.from_tensor_slices(write(tmp_path, [1, 1])).repeat()
    sharded = file_shards.shard(files.interleave(tf.data.TFRecordDataset).batch(2), Part(0, 2))
    assert file_shards.count_files(sharded) is None


def test_only_files_that_the_user_shards_are_by_file() -> None:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.FILE
    data = tf.data.Dataset.range(4).batch(2)
    assert not file_shards.is_by_file(data)
    assert file_shards.is_by_file(data.with_options(options).prefetch(1))


def found(files: Sequence[int], counts: Sequence[int]) -> Found:
    workers = len(files)
    reads = [file_shards.files_of([max(files[0], 0)], Part(worker, workers)) for worker in range(workers)]
    return Found(files, reads, counts, 24)


def plans(rows: list[int], batch: int, devices: int = 1) -> list[Plan]:
    return [
        file_shards.plan_epoch(rows, batch, Part(worker, len(rows)), devices) for worker in range(len(rows))
    ]


@pytest.mark.parametrize(
    ("rows", "batch", "expected"),
    [
        ([48, 48], 24, [Plan(4, [12] * 4), Plan(4, [12] * 4)]),
        ([50, 50], 24, [Plan(5, [12, 12, 12, 12, 2])] * 2),
        ([18, 17], 16, [Plan(3, [8, 8, 2], [0.5, 0.5, 2 / 3]), Plan(3, [8, 8, 1], [0.5, 0.5, 1 / 3])]),
        ([60, 36], 24, [Plan(3, [12] * 3), Plan(3, [12] * 3)]),
        ([9, 9], 5, [Plan(3, [2, 2, 2], [0.4, 0.4, 0.4]), Plan(3, [3, 3, 3], [0.6, 0.6, 0.6])]),
        ([1, 1], 24, [Plan(1, [1]), Plan(1, [1])]),
    ],
)  # fmt: skip
def test_an_epoch_is_what_the_smallest_part_has(rows: list[int], batch: int, expected: list[Plan]) -> None:
    assert plans(rows, batch) == expected


@given(st.lists(st.integers(1, 70), min_size=1, max_size=4), st.integers(1, 20), st.integers(1, 3))
def test_workers_take_equally_many_steps_and_each_row_counts_for_as_much(
    rows: list[int], batch: int, devices: int
) -> None:
    if min(rows) < devices:
        with pytest.raises(InvalidConfiguration, match="devices"):
            plans(rows, batch, devices)
        return
    found = plans(rows, batch, devices)
    steps = {plan.steps for plan in found}
    assert len(steps) == 1
    for have, plan in zip(rows, found, strict=True):
        assert plan.sizes is not None
        assert len(plan.sizes) == (plan.steps or 0) * devices
        assert min(plan.sizes) >= 1
        assert sum(plan.sizes) <= have
    for step in range((plan.steps or 0) * devices // devices):
        taken = [(p.sizes or [])[step * devices + one] for p in found for one in range(devices)]
        shares = [
            p.shares[step * devices + one] if p.shares else 1 / len(taken)
            for p in found
            for one in range(devices)
        ]
        assert shares == pytest.approx([float(Fraction(one, sum(taken))) for one in taken])
        assert sum(taken) <= max(batch, len(taken))


@pytest.mark.parametrize(
    ("batch", "workers", "devices", "sizes", "shares"),
    [
        (24, 2, 1, [[12], [12]], [None, None]),
        (24, 2, 2, [[6, 6], [6, 6]], [None, None]),
        (5, 2, 1, [[2], [3]], [[0.4], [0.6]]),
        (1, 2, 1, [[1], [1]], [None, None]),
    ],
)
def test_a_step_has_the_rows_of_a_global_batch(
    batch: int, workers: int, devices: int, sizes: Any, shares: Any
) -> None:
    found = [file_shards.plan_endless(batch, Part(worker, workers), devices) for worker in range(workers)]
    assert [plan.sizes for plan in found] == sizes
    assert [plan.shares for plan in found] == shares


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(2, [3, 3]), [[0, 1, 2], [3, 4, 5]]),
        (Plan(3, [3, 3, 1]), [[0, 1, 2], [3, 4, 5], [6]]),
        (Plan(None, [3]), [[0, 1, 2], [3, 4, 5], [6, 0, 1], [2, 3, 4], [5, 6, 0]]),
        (Plan(None, [1, 3]), [[0], [1, 2, 3], [4], [5, 6, 0], [1]]),
    ],
)
def test_batches_are_made_anew(plan: Plan, expected: list[list[int]]) -> None:
    found = file_shards.joined(tf.data.Dataset.range(7).batch(4), plan, 1).take(5)
    assert [one.numpy().tolist() for one in found] == expected


def test_batches_come_with_their_shares() -> None:
    found = file_shards.joined(tf.data.Dataset.range(7).batch(4), Plan(2, [3, 1], [0.5, 0.25]), 1)
    assert [(one.numpy().tolist(), float(share)) for one, share in found] == [([0, 1, 2], 0.5), ([3], 0.25)]


@pytest.mark.parametrize(
    ("plan", "shapes"),
    [
        (Plan(2, [3, 3]), Shapes.LAST_SMALLER),
        (Plan(None, [3]), Shapes.EQUAL),
        (Plan(2, None), Shapes.UNKNOWN),
    ],
)
def test_workers_agree_on_which_batches_have_one_shape(plan: Plan, shapes: Shapes) -> None:
    assert OwnFiles(None, plan, 1, "").shapes is shapes


@pytest.mark.parametrize(
    ("seen", "trouble"),
    [
        (found([5, 5], [UNKNOWN, UNKNOWN]), None),
        (found([UNKNOWN, UNKNOWN], [3, 4]), None),
        (found([1, 1], [UNKNOWN] * 2), "the data lies in 1 file, and auto_shard_policy FILE gives each"),
        (found([2] * 3, [UNKNOWN] * 3), "write it to at least 3 files, train with fewer workers"),
        (found([5, 4], [10, 9]), "worker 0 finds 5 files of training data, and worker 1 finds 4"),
        (found([5, 5], [10, 0]), "worker 1's files hold no batch of 24 rows"),
    ],
)  # fmt: skip
def test_files_that_cant_be_shared_are_refused_with_what_to_do(seen: Found, trouble: str | None) -> None:
    said = seen.trouble()
    assert said == trouble if trouble is None else trouble in str(said)
    if trouble is not None:
        with pytest.raises(InvalidConfiguration):
            seen.plan(Part(0, len(seen.files)), 1)


@pytest.mark.parametrize(
    ("seen", "steps", "sentence"),
    [
        (
            found([5, 5], [48, 48]),
            4,
            "each of 2 workers reads 2 to 3 of 5 files; an epoch is 4 steps",
        ),
        (
            found([5, 5], [60, 36]),
            3,
            "each of 2 workers reads 2 to 3 of 5 files; they hold 36 to 60 rows each, and an epoch is 3 "
            "steps, as many as the smallest part has; what larger parts have beyond that is left out ("
            "without a shuffle() the same rest in each epoch)",
        ),
        (
            found([32] * 5, [UNKNOWN] * 5),
            None,
            "each of 5 workers reads 6 to 7 of 32 files; a worker that has read its own begins them again",
        ),
    ],
)
def test_a_line_says_what_each_worker_reads(seen: Found, steps: int | None, sentence: str) -> None:
    assert seen.sentence(steps, reorders=False) == f"training data: {sentence}"
