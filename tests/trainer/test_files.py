from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from trainjob_trainer import InvalidConfiguration, Part, interleaved

FILES, RECORDS = 5, 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of 40 records each; those of file 2 are the numbers from 200 on."""
    path = tmp_path_factory.mktemp("records")
    for file in range(FILES):
        with tf.io.TFRecordWriter(str(path / f"train-{file}.tfrecord")) as writer:
            for number in range(RECORDS):
                writer.write(str(100 * file + number).encode())
    return path


def parse(record: Any) -> Any:
    return tf.strings.to_number(record, tf.int64)


def values(dataset: Any) -> list[int]:
    return [int(value) for value in dataset]


def test_all_records_come_once_from_several_files_at_a_time(folder: Path) -> None:
    read = values(interleaved(f"{folder}/train-*.tfrecord", parse))

    assert sorted(read) == [100 * file + number for file in range(FILES) for number in range(RECORDS)]
    assert len({value // 100 for value in read[:100]}) == FILES


def test_the_order_is_the_same_however_the_files_are_named(folder: Path) -> None:
    names = sorted(str(path) for path in folder.iterdir())

    assert values(interleaved(names[::-1], parse)) == values(interleaved(f"{folder}/*", parse))


@pytest.mark.parametrize("workers", [2, 5, 7])
def test_parts_are_files_or_records_where_there_are_fewer_files(folder: Path, workers: int) -> None:
    parts = [values(interleaved(f"{folder}/*", parse, part=Part(index, workers))) for index in range(workers)]

    assert sorted(value for part in parts for value in part) == sorted(
        values(interleaved(f"{folder}/*", parse))
    )
    files = [{value // 100 for value in part} for part in parts]
    assert sum(map(len, files)) == FILES if workers <= FILES else all(len(one) == FILES for one in files)


def test_records_without_a_parser_are_bytes_and_files_may_be_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")

    lines = interleaved(f"{tmp_path}/*.txt", read=tf.data.TextLineDataset)

    assert [line.numpy() for line in lines] == [b"one", b"two"]


@pytest.mark.parametrize(
    ("files", "words"), [("/nowhere/*.tfrecord", r"no files match /nowhere/"), ([], "no files are named")]
)
def test_files_that_are_not_there_are_named(files: Any, words: str) -> None:
    with pytest.raises(InvalidConfiguration, match=words):
        interleaved(files)
