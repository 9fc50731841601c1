from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob.cluster import Conflict, Unavailable
from trainjob.cluster.kube.client import GarbledWatch, LineSplitter, LineTooLong, read_event
from trainjob.cluster.kube.responses import Expired


@given(
    st.lists(st.binary(min_size=1).filter(lambda line: b"\n" not in line and line.strip() == line != b"")),
    st.integers(1, 7),
)
def test_lines_come_out_whole_however_they_are_cut(lines: list[bytes], size: int) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter()
    found = [
        line for start in range(0, len(stream), size) for line in splitter.feed(stream[start : start + size])
    ]
    assert found == lines


def test_a_line_may_be_longer_than_any_buffer_of_the_transport() -> None:
    splitter = LineSplitter()
    chunk = b"x" * 65_536
    for _ in range(64):
        assert list(splitter.feed(chunk)) == []
    assert list(splitter.feed(b"\n")) == [chunk * 64]


def test_a_line_without_end_is_not_kept_for_ever() -> None:
    splitter = LineSplitter(longest=10)
    assert list(splitter.feed(b"0123456789")) == []
    with pytest.raises(LineTooLong):
        list(splitter.feed(b"0"))


def test_the_limit_is_one_lines_not_the_streams() -> None:
    splitter = LineSplitter(longest=10)
    for _ in range(5):
        assert list(splitter.feed(b"0123456\n")) == [b"0123456"]


def event(kind: str, **body: object) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode()


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
def test_an_event_is_read(kind: str) -> None:
    assert read_event(event(kind, metadata={"uid": "1"})).type == kind


def test_a_bookmark_has_a_version_only() -> None:
    assert read_event(event("BOOKMARK", metadata={"resourceVersion": "7"})).type == "BOOKMARK"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"7",
        b"{}",
        b'{"type": "ADDED"}',
        b'{"type": "ADDED", "object": null}',
        b'{"type": "ADDED", "object": {}}',
        b'{"type": "ADDED", "object": {"metadata": {"uid": ""}}}',
        b'{"type": "ERROR", "object": null}',
        b'{"type": "ERROR", "object": {"code": "x"}}',
        b'{"type": "NEWS", "object": {"metadata": {"uid": "1"}}}',
    ],
)
def test_garbage_is_distinguished_from_events(line: bytes) -> None:
    with pytest.raises(GarbledWatch):
        read_event(line)


@pytest.mark.parametrize(
    ("code", "kind"), [(410, Expired), (500, Unavailable), (409, Conflict), (None, Unavailable)]
)
def test_an_error_in_a_watch_means_what_it_means_as_an_answer(code: int | None, kind: type) -> None:
    with pytest.raises(kind):
        read_event(event("ERROR", code=code, message="too old"))
