"""What the images hold beside our own packages, by the lock file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
OPERATOR = ROOT / "operator" / "src" / "trainjob"
LOCKED: list[dict[str, Any]] = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
PRUNED = "kubernetes"


def needed(name: str, *, without: str = "", extra: str = "") -> set[str]:
    """The names of all packages that one needs, itself included."""
    seen: set[str] = set()
    todo = [(name, extra)]
    while todo:
        name, extra = todo.pop()
        if name in seen or name == without:
            continue
        seen.add(name)
        for package in (one for one in LOCKED if one["name"] == name):
            more = package.get("optional-dependencies", {}).get(extra, []) if extra else []
            todo += [(one["name"], "") for one in package.get("dependencies", []) + more]
    return seen


def imported(path: Path) -> Iterator[str]:
    """The top-level packages that a module imports anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def pinned() -> dict[str, set[str]]:
    """The versions in examples/requirements.txt by package."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "examples" / "requirements.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            one = Requirement(line)
            found.setdefault(one.name, set()).add(str(one.specifier).removeprefix("=="))
    return found


def test_the_lock_has_no_constraints() -> None:
    """`uv export` writes them without a hash, and the images install nothing without one."""
    assert "constraints" not in tomllib.loads((ROOT / "uv.lock").read_text())["manifest"]


def test_the_operator_image_has_no_tensorflow() -> None:
    in_image = needed("trainjob", without=PRUNED, extra="controller")
    assert in_image.isdisjoint({"tensorflow", "tensorflow-cpu", "keras", "numpy"})


def test_only_the_trainer_image_has_the_client_for_buckets() -> None:
    assert "obstore" in needed("trainjob-trainer", extra="bucket")
    assert "obstore" not in needed("trainjob", extra="controller") | needed("trainjob-trainer", extra="cpu")


def test_the_operator_image_leaves_out_the_official_client() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert re.search(rf"--package trainjob --extra controller \\\n +--prune {PRUNED} ", dockerfile)
    assert PRUNED in needed("trainjob")


def test_people_install_nothing_that_only_the_controller_imports() -> None:
    asked = tomllib.loads((ROOT / "operator" / "pyproject.toml").read_text())["project"]
    extra = {Requirement(one).name for one in asked["optional-dependencies"]["controller"]}
    assert extra.isdisjoint(needed("trainjob"))
    assert extra < needed("trainjob", extra="controller")


def test_make_run_installs_a_part_of_what_make_test_installs() -> None:
    lines = (ROOT / "Makefile").read_text().replace("\\\n", "").splitlines()
    (syncs,) = [line for line in lines if "--no-dev" in line]
    assert "--group examples" in syncs
    (workspace,) = [one for one in LOCKED if one["name"] == "trainjob-workspace"]
    names = {one["name"] for one in [*workspace["dependencies"], *workspace["dev-dependencies"]["examples"]]}
    run = set[str]().union(*map(needed, names))
    assert run >= {"trainjob", "trainjob-trainer", "scikit-learn"}
    assert run.isdisjoint({"kopf", "mypy", "pytest", "ruff"})
    assert {"kopf", "pytest"} <= {
        name
        for one in workspace["dev-dependencies"]["dev"]
        for name in needed(one["name"], extra="controller")
    }


def test_the_controller_starts_without_what_its_image_leaves_out() -> None:
    left_out = {name.replace("-", "_") for name in needed("trainjob") - needed("trainjob", without=PRUNED)}
    assert PRUNED in left_out
    users = {path for path in OPERATOR.rglob("*.py") if left_out.intersection(imported(path))}
    kube = OPERATOR / "cluster" / "kube"
    assert users == {kube / "config.py", kube / "exec.py"}  # kubeconfigs, and programs in pods
    absent = f"import sys; sys.modules.update(dict.fromkeys({sorted(left_out)}))"
    for module in ("trainjob.controller.operator", "trainjob.installation.__main__"):
        subprocess.run([sys.executable, "-c", f"{absent}; import {module}"], check=True)


def test_the_example_pins_what_was_tested() -> None:
    for name, versions in pinned().items():
        assert versions == {package["version"] for package in LOCKED if package["name"] == name}


def test_the_example_pins_all_that_the_trainer_image_lacks() -> None:
    trainer = needed("trainjob-trainer", extra="cpu")
    assert needed("scikit-learn") - trainer == pinned().keys()
