"""What docs/images.md names is there: targets, arguments, versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/images.md").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
LOCKED = {p["name"]: p["version"] for p in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}


def test_the_tested_versions_are_the_locked_ones() -> None:
    table = PAGE.partition("## Tested versions")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (3\.\d+) \| (\S+) \| (\S+) \|", table, re.MULTILINE)
    assert (LOCKED["tensorflow"], LOCKED["keras"]) in {(tensorflow, keras) for _, tensorflow, keras in rows}


@pytest.mark.parametrize(
    "name", re.findall(r"--build-arg (\w+)=", PAGE) + re.findall(r"^\| `([A-Z_]+)`", PAGE, re.MULTILINE)
)
def test_build_arguments(name: str) -> None:
    assert f"ARG {name}" in DOCKERFILE


@pytest.mark.parametrize("target", sorted(set(re.findall(r"--target (\w+)", PAGE))))
def test_targets(target: str) -> None:
    assert re.search(rf"^FROM \S+ AS {target}$", DOCKERFILE, re.MULTILINE)


def test_the_base_and_the_tags_are_those_of_the_files() -> None:
    (base,) = re.findall(r"^FROM docker\.io/library/(\S+)@\S+ AS base$", DOCKERFILE, re.MULTILINE)
    assert f"| `BASE_IMAGE` | Docker's `{base}`, by digest |" in PAGE
    assert set(re.findall(r"ghcr\.io/trainjob/\w+:(\d[\d.]*\d)", PAGE)) == {LOCKED["trainjob"]}
