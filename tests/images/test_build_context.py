"""Of the repository the builder gets what the Dockerfile copies, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATTERNS = [
    line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")
]


def expression(pattern: str) -> re.Pattern[str]:
    """A pattern of .dockerignore; it matches a path and everything below it."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]*\])", pattern)
    special = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = "".join(special.get(part) or (part if part.startswith("[") else re.escape(part)) for part in parts)
    return re.compile(f"{text}(?:/.*)?")


def is_ignored(path: str) -> bool:
    """The last pattern that matches decides."""
    ignored = False
    for pattern in PATTERNS:
        if expression(pattern.removeprefix("!")).fullmatch(path):
            ignored = not pattern.startswith("!")
    return ignored


def copied() -> Iterator[str]:
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY ") and "--from=" not in line:
            yield from (word.rstrip("/") for word in line.split()[1:-1])


def test_everything_that_is_copied_is_there() -> None:
    sources = set(copied())
    assert {"pyproject.toml", "uv.lock", "operator", "trainer"} <= sources
    for source in sources:
        assert (ROOT / source).exists()
        assert not is_ignored(source)


@pytest.mark.parametrize("package", ["operator", "trainer"])
def test_all_sources_of_a_package_are_there(package: str) -> None:
    files = [path for path in (ROOT / package).rglob("*") if path.is_file() and "cache" not in str(path)]
    assert ROOT / package / "README.md" in files
    assert [path for path in files if is_ignored(str(path.relative_to(ROOT)))] == []


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".venv/bin/python",
        "runs/digits/checkpoints/final.json",
        "tests/images/test_build_context.py",
        "docs/images.md",
        "Dockerfile",
        "operator/src/trainjob/__pycache__/__init__.cpython-311.pyc",
        "trainer/.ruff_cache/x",
    ],
)
def test_what_no_image_needs_stays_here(path: str) -> None:
    assert is_ignored(path)
