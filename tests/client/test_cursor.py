from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob.client.job_logs import LogCursor, LogLine

STAMP = "2026-01-02T03:04:{:02}.{:09}Z"


def feed(cursor: LogCursor, text: str) -> list[str]:
    return [line.text for line in cursor.feed(text.encode())]


def served(lines: list[bytes], cursor: LogCursor) -> bytes:
    """What the kubelet gives: lines whose stamp isn't before `since`."""
    since = (cursor.since or "").removesuffix("Z").encode()
    return b"".join(line for line in lines if line[: len(since)] >= since)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"2026-01-02T03:04:05.5Z hello", (500_000_000, "2026-01-02T03:04:05.5Z", "hello")),
        (b"2026-01-02T03:04:05Z hello", (0, "2026-01-02T03:04:05Z", "hello")),
        (b"2026-01-02T05:04:05.000000001+02:00 x", (1, "2026-01-02T05:04:05.000000001+02:00", "x")),
        (b"2026-01-02T03:04:05Z ", (0, "2026-01-02T03:04:05Z", "")),
        (b"2026-01-02T03:04:05Z", (0, "2026-01-02T03:04:05Z", "")),
        (b"2026-01-02T03:04:05Z  two spaces ", (0, "2026-01-02T03:04:05Z", " two spaces ")),
        (b"2026-01-02T03:04:05Z \x1b[31mred\x1b[0m", (0, "2026-01-02T03:04:05Z", "red")),
        (b"2026-01-02T03:04:05Z 10%\r20%", (0, "2026-01-02T03:04:05Z", "20%")),
        (b"2026-01-02T03:04:05Z caf\xe9", (0, "2026-01-02T03:04:05Z", "caf\N{REPLACEMENT CHARACTER}")),
    ],
)
def test_a_line(line: bytes, expected: tuple[int, str, str]) -> None:
    fraction, stamp, text = expected
    assert LogCursor().feed(line + b"\n") == [LogLine(1767323045 * 10**9 + fraction, stamp, text)]


def test_lines_without_a_stamp_are_passed_on() -> None:
    cursor = LogCursor()
    assert feed(cursor, "unable to retrieve container logs\n") == ["unable to retrieve container logs"]
    assert cursor.since is None


def test_pieces_may_be_cut_anywhere() -> None:
    cursor = LogCursor()
    text = f"{STAMP.format(5, 1)} h\N{LATIN SMALL LETTER E WITH ACUTE}llo\n".encode()
    parts = [cursor.feed(text[i : i + 1]) for i in range(len(text))]
    assert [line.text for part in parts for line in part] == ["h\N{LATIN SMALL LETTER E WITH ACUTE}llo"]


def test_a_last_line_without_an_end() -> None:
    cursor = LogCursor()
    assert feed(cursor, f"{STAMP.format(5, 1)} one\n{STAMP.format(5, 2)} tw") == ["one"]
    assert [line.text for line in cursor.finish()] == ["tw"]
    assert cursor.finish() == []


@pytest.mark.parametrize("rest", ["", "2026-01", "2026-01-02T03:04:05.1"])
def test_half_a_stamp_is_no_line(rest: str) -> None:
    cursor = LogCursor()
    cursor.feed(rest.encode())
    assert cursor.finish() == []


def test_it_continues_a_second_before_the_last_line() -> None:
    cursor = LogCursor()
    feed(cursor, f"{STAMP.format(9, 500)} x\n")
    assert cursor.since == "2026-01-02T03:04:08Z"


def test_equal_lines_are_counted() -> None:
    cursor, line = LogCursor(), f"{STAMP.format(5, 1)} again\n"
    assert feed(cursor, line * 2) == ["again"] * 2
    cursor.reopen()
    assert feed(cursor, line * 3) == ["again"]


@pytest.mark.parametrize(
    ("piece", "shown"),
    [
        (b"x" * 16384, "x" * 100),
        (b"12%\r" * 4096, "12%"),
        (b"\r" * 16384, ""),
        (b"\xff" * 16384, "\ufffd" * 100),
        (b"\x1b[" + b"0" * 16382, "[" + "0" * 99),
    ],
    ids=["x", "progress", "returns", "no text", "half an escape"],
)
@pytest.mark.parametrize("start", [b"2026-01-02T03:04:05.000000000Z ", b""])
def test_a_line_without_an_end_is_read_once_and_kept_in_part(start: bytes, piece: bytes, shown: str) -> None:
    """When each piece was added to all before, 32 MiB of it took minutes."""
    cursor = LogCursor()
    tracemalloc.start()
    assert cursor.feed(start) == []
    for _ in range(512):
        assert cursor.feed(piece) == []
    (line,) = cursor.feed(b"\n")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert line.text[:100] == shown
    assert len(line.text) < (1 << 20) + 100
    assert most < 7 << 20  # of 8


@given(st.lists(st.binary(max_size=60)), st.lists(st.integers(0, 2000), max_size=9), st.booleans())
def test_where_pieces_are_cut_makes_no_difference(texts: list[bytes], cuts: list[int], stamped: bool) -> None:
    stamp = STAMP.format(5, 1).encode() + b" "
    data = b"".join((stamp if stamped else b"") + text + b"\n" for text in texts)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    cursor = LogCursor()
    pieces = [cursor.feed(data[a:b]) for a, b in pairwise(edges)]
    assert [line for lines in pieces for line in lines] == LogCursor().feed(data)


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """Lines whose stamps grow, and go back by less than a second at times; some are equal."""
    gaps = draw(st.lists(st.integers(0, 900_000_000), min_size=1, max_size=40))
    lines = []
    for moment in accumulate(gaps):
        back = draw(st.sampled_from([0, 0, 0, min(moment, 900_000_000)]))
        at = moment - back
        text = draw(st.sampled_from(["a", "b", ""]))
        lines.append(f"{STAMP.format(at // 10**9, at % 10**9)} {text}\n".encode())
    return lines


@given(lines=logs(), cuts=st.lists(st.integers(0, 400), max_size=8))
def test_nothing_is_lost_and_nothing_comes_twice(lines: list[bytes], cuts: list[int]) -> None:
    cursor = LogCursor()

    def read() -> Iterator[LogLine]:
        for cut in cuts:
            yield from cursor.feed(served(lines, cursor)[:cut])
            cursor.reopen()
        yield from cursor.feed(served(lines, cursor))
        yield from cursor.finish()

    whole = LogCursor().feed(b"".join(lines))
    assert sorted((line.stamp, line.text) for line in read()) == sorted((x.stamp, x.text) for x in whole)
