"""The table of tested versions has one row for each command, which its newest run has written."""

from __future__ import annotations

import pytest

from support.tested import HEADER, PAGE, with_row

LINE = "|---|---|---|---|---|---|---|---|---|"
PAGES = {
    "first": (f"a\n\n{HEADER}\n{LINE}\n\nb\n", ["| `make a` | 2 |"]),
    "newer": (f"a\n\n{HEADER}\n{LINE}\n| `make a` | 1 |\n\nb\n", ["| `make a` | 2 |"]),
    "other": (f"a\n\n{HEADER}\n{LINE}\n| `make b` | 1 |\n\nb\n", ["| `make a` | 2 |", "| `make b` | 1 |"]),
    "longer": (
        f"a\n\n{HEADER}\n{LINE}\n| `make a b` | 1 |\n\nb\n",
        ["| `make a b` | 1 |", "| `make a` | 2 |"],
    ),
}


@pytest.mark.parametrize("case", PAGES)
def test_a_run_writes_its_own_row(case: str) -> None:
    page, rows = PAGES[case]
    assert with_row(page, ("`make a`", "2")) == "\n".join(["a", "", HEADER, LINE, *rows, "", "b", ""])


def test_the_page_has_the_table() -> None:
    assert f"{HEADER}\n{LINE}\n" in PAGE.read_text(encoding="utf-8")
