"""Each decision has a number, a title, a status with its date, and a row in the list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "adr"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_decision_is_listed_by_its_title(page: Path) -> None:
    heading, _, status = page.read_text(encoding="utf-8").splitlines()[:3]
    number = page.name[:4]
    found = re.fullmatch(r"# (\d+)\. (.+)", heading)
    assert found is not None
    assert int(found[1]) == int(number)
    assert re.match(r"Status: \w+.*, \d+ \w+ \d{4}", status)
    assert f"| [{number}]({page.name}) | {found[2]} |" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_no_number_is_used_twice() -> None:
    numbers = [page.name[:4] for page in PAGES]
    assert len(set(numbers)) == len(numbers)
