from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob.cluster.local.process import LogTail, TextLines


def _split(*chunks: bytes, longest: int = 40) -> list[str]:
    splitter = TextLines(longest)
    return [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.end()


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b""], []),
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"one\ntw", b"o"], ["one", "two"]),
        ([b"\n\n"], ["", ""]),
        ([b"dos\r\n", b"split\r", b"\nend"], ["dos", "split", "end"]),
        ([b"1/3\r2/3\r3/3\n"], ["3/3"]),
        ([b"1/3\r", b"2/3\r", b"3/3"], ["3/3"]),
        ([b"1/3", b"\r2/3", b"\r\r\n"], ["2/3"]),
        ([b"gr\xc3", b"\xbcn\n"], ["grün"]),
        ([b"bad \xff\xfe byte\n"], ["bad \ufffd\ufffd byte"]),
        ([b"half \xe2\x82"], ["half \ufffd"]),
        ([b"\x1b[1m1/2\x1b[0m \x1b]0;title\x07done\x1b[K\n"], ["1/2 done"]),
        (["\x9b31mred\x85\n".encode()], ["31mred"]),
        ([b"nul\x00bell\x07back\x08tab\tkept\n"], ["nulbellbacktab\tkept"]),
        ([b"x" * 100 + b"\nnext\n"], ["x" * 40 + "... (60 more characters)", "next"]),
        ([b"x" * 30, b"y" * 30, b"z" * 30 + b"\n"], ["x" * 30 + "y" * 10 + "... (50 more characters)"]),
        ([b"x" * 100 + b"\rshort\n"], ["short"]),
        ([b"x" * 40 + b"\r\n"], ["x" * 40]),
    ],
)
def test_lines(chunks: list[bytes], expected: list[str]) -> None:
    assert _split(*chunks) == expected


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_where_the_stream_is_cut_makes_no_difference(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges)]
    assert _split(*pieces, longest=10_000) == _split(data, longest=10_000)


@given(st.lists(st.binary(max_size=200)))
def test_no_line_is_long_or_can_move_the_cursor(chunks: list[bytes]) -> None:
    for line in _split(*chunks):
        assert len(line) <= 40 + len("... (40000 more characters)")
        assert not any(c in line for c in "\x1b\r\n\x08\x00")


def test_the_tail_keeps_the_last_lines() -> None:
    tail = LogTail(size=20)
    for number in range(100):
        tail.add(f"line {number}")
    assert tail.lines == ("line 98", "line 99")
    assert tail.text == "line 98\nline 99"


def test_one_long_line_is_cut_from_the_front() -> None:
    tail = LogTail(size=10)
    tail.add("ü" * 100)
    assert tail.text == "ü" * 5


@given(st.lists(st.text()))
def test_the_tail_fits_its_size(lines: list[str]) -> None:
    tail = LogTail(size=30)
    for line in lines:
        tail.add(line)
    assert len(tail.text.encode()) <= 30
