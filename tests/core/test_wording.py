from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob.core.wording import printable, reason_word
from trainjob_trainer.contract.reports import shorten


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain Grüße 😀", "plain Grüße 😀"),
        ("two\n\tlines", "two\n\tlines"),
        ("\x1b[1;31mred\x1b[0m \x9b2Jgone", "red gone"),
        ("\x1b]0;a title\x07a\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "alink"),
        ("\x1bPsixel\x1b\\kept \x9dtitle\x9c", "kept "),
        ("\x1b]0;never ended\nnext", "]0;never ended\nnext"),
        ("back\b\b\rover\x00", "backover"),
        ("\u202eturned\u2066 \u200bzero \ufeffwidth", "turned zero width"),
        ("lone \ud800", "lone "),
    ],
)
def test_what_drives_a_terminal_or_turns_a_line_is_left_out(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(codec=None)) | st.text("\x1b[]0;m\x07\\\n\x9b\x9ca"))
def test_what_is_shown_is_shown_as_it_is(text: str) -> None:
    shown = printable(text)
    assert all(character in "\n\t" or character.isprintable() for character in shown)
    assert printable(shown) == shown
    shown.encode()


@pytest.mark.parametrize("word", ["Crashed", "OutOfMemory", "A", "A" * 64])
def test_a_valid_reason_stays(word: str) -> None:
    assert reason_word(word, "Other") == word


@pytest.mark.parametrize(
    "word", ["", "crashed", "Out Of", "A" * 65, "Crashed\n", "É", "OutOfnvidia.com/gpu", None, 7]
)
def test_an_invalid_reason_is_replaced(word: object) -> None:
    assert reason_word(word, "Other") == "Other"


@pytest.mark.parametrize(
    ("text", "most", "in_bytes", "shown"),
    [
        ("short", 10, False, "short"),
        ("0123456789", 10, True, "0123456789"),
        ("worker-0: 0123456789: no such file", 21, False, "worker-0: … such file"),
        ("0123456789ab", 10, True, "0123…9ab"),
        ("éééééééé", 9, True, "é…é"),
        ("éééééééé", 7, False, "ééé…ééé"),
    ],
)
def test_a_long_text_keeps_its_ends(text: str, most: int, in_bytes: bool, shown: str) -> None:
    assert shorten(text, most, in_bytes=in_bytes) == shown


@given(st.text(max_size=600), st.integers(3, 1024))
def test_what_is_shortened_fits(text: str, most: int) -> None:
    assert len(shorten(text, most, in_bytes=True).encode()) <= most
    assert len(shorten(text, most)) <= most
