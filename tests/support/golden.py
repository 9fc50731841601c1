"""What the program tells people, in the files of tests/golden: a sentence is changed in one place.

A test notes texts with `golden(text)`. When it has passed, they are compared with its section of the area's
file. `make golden` runs these tests, and writes what they note.
"""

from __future__ import annotations

import difflib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

AREAS = {"core": "controller", "agent": "agents", "convert": "converter", "client": "cli", "cli": "cli"}
FOLDER = Path(__file__).parents[1] / "golden"
ACCEPTS = "" if os.environ.get("CI") else os.environ.get("GOLDEN", "")
"""Whether texts are written: `all` (as `make golden` has it), or those of `some` tests."""


class Golden:
    """The lines that a test notes."""

    def __init__(self, item: pytest.Function) -> None:
        self._item = item
        self.section = section_of(item)
        self.file = FOLDER / f"{AREAS[self.section.split('/')[1]]}.txt"
        self.lines: list[str] = []

    def __call__(self, *texts: str | None) -> None:
        folder = str(self._item.funcargs.get("tmp_path", FOLDER))
        for text in texts:
            shown = str(text).replace(folder, "FOLDER").replace("\x1b", "\\x1b")
            self.lines += [f"    {line}".rstrip() for line in shown.splitlines()]


def section_of(item: pytest.Item) -> str:
    """Return the test's ID, with the number of its case if the case's ID is prose."""
    name, _, case = item.nodeid.partition("[")
    if isinstance(item, pytest.Function) and " " in case:
        return f"{name}[{'-'.join(map(str, dict.fromkeys(item.callspec.indices.values())))}]"
    return item.nodeid


def read(file: Path) -> dict[str, list[str]]:
    """Return the lines of each section."""
    sections: dict[str, list[str]] = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        if line[:1].strip():
            lines = sections[line] = []
        else:
            lines.append(line)
    return sections


def update(file: Path, sections: dict[str, list[str]]) -> None:
    """Write these sections, or remove those without a line; processes of pytest-xdist take turns."""
    with file.open("a+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        merged = sorted((read(file) | sections).items())
        stream.truncate(0)
        stream.writelines("\n".join([name, *lines, ""]) for name, lines in merged if lines)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Notes what the program says, for the golden file."""
    return Golden(request.node)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield
    if (golden := getattr(item, "funcargs", {}).get("golden")) is None:
        return
    if ACCEPTS:
        update(golden.file, {golden.section: golden.lines})
    elif golden.lines != (expected := read(golden.file).get(golden.section, [])):
        diff = "\n".join(line.rstrip() for line in difflib.ndiff(expected, golden.lines))
        pytest.fail(f"not the text of {golden.file.name}; `make golden` accepts it:\n{diff}", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Accept from the tests that note texts; with all of them, sections of tests that are gone go, too."""
    if ACCEPTS:
        items[:] = [item for item in items if "golden" in getattr(item, "fixturenames", ())]
    if ACCEPTS == "all":
        sections = {section_of(item) for item in items}
        for file in FOLDER.iterdir():
            update(file, {name: [] for name in read(file) if name not in sections})
