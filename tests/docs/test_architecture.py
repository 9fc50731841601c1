"""`docs/architecture.md` shows the layers that imports keep; what it names exists."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
POLICIES = re.findall(r"^\| [^|]+ \| `(\w+)\.(\w+)` \|", PAGE, re.MULTILINE)
TESTS = re.findall(r"`(test_\w+\.py)::(\w+)`", PAGE)
FILES = {name for name in re.findall(r"`([\w/]+\.py)`", PAGE) if "/" in name}
OPERATOR, TRAINER = ROOT / "operator/src/trainjob", ROOT / "trainer/src/trainjob_trainer"


def test_its_layers_are_those_that_imports_are_held_to() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(one["layers"] for one in contracts if one["name"] == "Dependencies point one way")
    drawn = PAGE.partition("```text\n")[2].partition("```")[0].splitlines()
    assert [line.split("  ")[0] for line in drawn] == [one.replace("trainjob.", "") for one in layers]


def test_every_package_has_its_layer() -> None:
    packages = {file.parent.name for file in OPERATOR.glob("*/__init__.py")}
    drawn = PAGE.partition("```text\n")[2].partition("```")[0]
    assert packages == set(re.findall(r"\w+", " ".join(line.split("  ")[0] for line in drawn.splitlines())))


@pytest.mark.parametrize(("module", "name"), POLICIES)
def test_its_policies_are_there(module: str, name: str) -> None:
    assert callable(getattr(import_module(f"trainjob.core.policies.{module}"), name))


@pytest.mark.parametrize(("file", "name"), TESTS)
def test_its_tests_are_there(file: str, name: str) -> None:
    tree = ast.parse((ROOT / "tests/core" / file).read_text(encoding="utf-8"))
    assert name in {one.name for one in tree.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))}


@pytest.mark.parametrize("name", sorted(FILES))
def test_its_files_are_there(name: str) -> None:
    places = (OPERATOR, TRAINER, ROOT / "trainer/src")
    assert any((place / name).is_file() for place in places), name


@pytest.mark.parametrize("file", sorted((TRAINER / "contract").glob("*.py")), ids=lambda file: file.stem)
def test_the_contract_needs_only_the_standard_library(file: Path) -> None:
    found = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    names = {one.name for node in found if isinstance(node, ast.Import) for one in node.names}
    names |= {node.module or "" for node in found if isinstance(node, ast.ImportFrom)}
    others = {name for name in names if not name.startswith("trainjob_trainer.contract.")}
    assert {name.partition(".")[0] for name in others} <= sys.stdlib_module_names


def test_it_names_every_policy_of_the_chain() -> None:
    plan = import_module("trainjob.core.plan")
    assert {policy.__name__ for policy in plan.CHAIN} <= {name for _, name in POLICIES}


def test_it_has_at_most_twenty_words() -> None:
    words = PAGE.partition("\n## Words\n")[2].count("\n| ") - 1
    assert 0 < words <= 20
