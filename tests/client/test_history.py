"""Curves from a job's files, of which any may be cut off, damaged or odd."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import pytest

from support.cli.outputs import EVENTS
from support.golden import Golden
from trainjob.client.history import DamagedEvents, _checksum, read_events, read_history

LOSS = (40, "loss", 0.5)


def record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + struct.pack("<I", _checksum(length)) + content + struct.pack("<I", _checksum(content))


def read(tmp_path: Path, content: bytes) -> tuple[list[tuple[int, str, float]], bool]:
    """Return what a file says, and whether it is damaged."""
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(content)
    events = list[tuple[int, str, float]]()
    try:
        for event in read_events(path):
            events.append(event)
    except DamagedEvents:
        return events, True
    return events, False


def test_a_file_of_tensorflow_matches_its_checksums(tmp_path: Path) -> None:
    assert read(tmp_path, EVENTS * 3) == ([LOSS] * 3, False)


def test_a_file_that_is_still_written_is_read_so_far(tmp_path: Path) -> None:
    for end in range(len(EVENTS)):
        assert read(tmp_path, EVENTS + EVENTS[:end]) == ([LOSS], False)


@pytest.mark.parametrize("change", [1, 0x80, 0xFF])
def test_reading_ends_at_the_first_damage(tmp_path: Path, change: int) -> None:
    for at in range(len(EVENTS)):
        damaged = bytearray(EVENTS)
        damaged[at] ^= change
        assert read(tmp_path, EVENTS + damaged + EVENTS) == ([LOSS], True), at


NOISE = random.Random(1).randbytes(800_000)  # noqa: S311 - the same each time


@pytest.mark.parametrize(
    ("content", "is_damaged"),
    [
        (bytes(800_000), True),
        (NOISE, True),
        (b"\xff" * 800_000, True),
        (struct.pack("<QI", 1 << 62, _checksum(struct.pack("<Q", 1 << 62))) + NOISE, False),
        # Whole by their checksums, so that what is in them is read.
        (record(NOISE), False),
        (record(b"\xff" * 800_000), False),
        (record(b"\x2a\xff\xff\x30" + b"\x0a\xff\xff\x2f" + b"\xff" * 800_000), False),
        (record(b"\x2a" + b"\xff" * 800_000), False),
        (record(b"") * 50_000, False),
        (record(b"\x10\x01" * 400_000), False),
    ],
    ids=range(10),
)
def test_any_bytes_are_read_in_linear_time(tmp_path: Path, content: bytes, is_damaged: bool) -> None:
    """A number of 800 kB, read bit by bit, took a minute and a half."""
    assert read(tmp_path, EVENTS + content) == ([LOSS], is_damaged)


@pytest.mark.parametrize(
    "line",
    [
        b'{"step": 1e400, "metrics": {"loss": 1}}',
        b'{"step": 1, "metrics": {"loss": 1' + b"0" * 400 + b"}}",
        b'{"step": 1' + b"0" * 5000 + b', "metrics": {}}',
        b"[" * 100_000,
        b"{" * 100_000,
        b'{"step": 1, "metrics": ["loss"]}',
        b"null",
        b"",
    ],
    ids=range(8),
)
def test_an_odd_line_is_left_out(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "logs").mkdir()
    good = b'{"step": 2, "metrics": {"loss": 0.5}}'
    (tmp_path / "logs/history.jsonl").write_bytes(line + b"\n" + good)
    assert read_history(tmp_path) == {"loss": {2: 0.5}}


def test_what_is_no_file_is_left_out_and_damage_is_reported(tmp_path: Path, golden: Golden) -> None:
    folder = tmp_path / "logs/train"
    folder.mkdir(parents=True)
    (tmp_path / "evaluator").mkdir()
    (folder / "events.out.tfevents.1.host").write_bytes(EVENTS + bytes(100) + EVENTS)
    (folder / "events.out.tfevents.2.host").mkdir()
    for pipe in (
        folder / "events.out.tfevents.3.host",  # to open it waits for somebody who writes
        tmp_path / "logs/history.jsonl",
        tmp_path / "evaluator/evaluations.jsonl",
    ):
        os.mkfifo(pipe)
    damages = list[str]()
    assert read_history(tmp_path, damages.append) == {"loss": {40: 0.5}}
    golden(*damages)
    assert len(damages) == 1
