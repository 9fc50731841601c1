"""One version everywhere, and a changelog that a release can quote."""

from __future__ import annotations

import re
import shutil
import tomllib
from datetime import date
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from testbed.places import GO_MODULES

import versions
from versions import CHANGELOG, PLACES, ROOT, open_section, read_notes, read_version, trainer_bounds

VERSION = read_version()
PACKAGES = ("operator", "trainer")
PIN = r"^\s*(?:k8s.io/kubernetes|helm.sh/helm/v\d) v(\d+\.\d+)\."
GENERATED = {"manifests/crd/crd.yaml", "charts/trainjob/files/crd.yaml"}
"""`make generate` writes the version into them; codegen's check compares."""

RELEASED = """# Changelog

## Unreleased

- New.

## 0.2.0 (2026-11-24)

### Controller

- Better.

## 0.1.0 (2026-01-01)

- First.
"""


@pytest.mark.parametrize("place", PLACES)
def test_each_place_has_the_version(place: str) -> None:
    assert set(versions.versions_in((ROOT / place).read_text(), PLACES[place])) == {VERSION}


def test_what_is_generated_has_the_version() -> None:
    for place in GENERATED:
        crd = yaml.safe_load((ROOT / place).read_text())
        assert crd["metadata"]["annotations"]["trainjob.dev/version"] == VERSION


def test_trainjob_asks_for_the_trainer_of_its_own_minor() -> None:
    assert f'"{trainer_bounds(VERSION)}"' in (ROOT / versions.SOURCE).read_text()


def test_setting_the_version_leaves_no_old_one(tmp_path: Path) -> None:
    for name in ("charts", "manifests", "docs", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("operator/pyproject.toml", "trainer/pyproject.toml", "Dockerfile", "README.md", CHANGELOG):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    versions.write_version("7.8.9", date(2030, 1, 2), tmp_path)
    assert read_version(tmp_path) == "7.8.9"
    assert "trainjob-trainer>=7.8,<7.9" in (tmp_path / versions.SOURCE).read_text()
    assert "\n## Unreleased\n\n## 7.8.9 (2030-01-02)\n" in (tmp_path / CHANGELOG).read_text()
    left = {
        str(path.relative_to(tmp_path))
        for path in tmp_path.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and VERSION.encode() in path.read_bytes()
    }
    assert left - {CHANGELOG} == GENERATED


def test_pages_that_deny_a_release_stop_it(tmp_path: Path) -> None:
    for name in versions.TELLING:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("It is on the index.\n")
    assert versions.denials(tmp_path) == []
    (tmp_path / "README.md").write_text("> **Nothing is\npublished yet**: no package.\n")
    (tmp_path / "docs/install.md").write_text("(no release is published\nyet, or the cluster can't pull)\n")
    assert versions.denials(tmp_path) == ["README.md", "docs/install.md"]


def test_a_section_is_opened_once() -> None:
    opened = open_section("# Changelog\n\n## Unreleased\n\n- New.\n", "0.3.0", date(2030, 1, 2))
    assert opened == "# Changelog\n\n## Unreleased\n\n## 0.3.0 (2030-01-02)\n\n- New.\n"
    assert open_section(opened, "0.3.0", date(2031, 1, 2)) == opened


def test_the_notes_of_a_version() -> None:
    assert read_notes(RELEASED, "0.2.0") == "### Controller\n\n- Better.\n"
    assert read_notes(RELEASED, "0.1.0") == "- First.\n"
    with pytest.raises(LookupError, match=r"no section 0\.3\.0"):
        read_notes(RELEASED, "0.3.0")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["notes", "v9.9.9"], f"v9.9.9 is not v{VERSION}"),
        (["set", "1.0"], "three numbers"),
        (["set", "v1.0.0"], "three numbers"),
    ],
)
def test_mistakes(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(versions.main, arguments)
    assert result.exit_code != 0
    assert message in result.stderr


def test_the_page_says_what_is_declared() -> None:
    page = (ROOT / "docs/versions.md").read_text()
    rows = dict(re.findall(r"^\| (\w[\w `]*) \| ([^|]*) \|$", page, re.MULTILINE))
    operator, trainer = (tomllib.loads((ROOT / f"{name}/pyproject.toml").read_text()) for name in PACKAGES)
    chart = yaml.safe_load((ROOT / "charts/trainjob/Chart.yaml").read_text())
    modules = {name: (GO_MODULES / name / "go.mod").read_text() for name in ("helm", "helm4")}
    pins = {name: re.search(PIN, text, re.MULTILINE) for name, text in modules.items()}
    used = {name: found and found[1] for name, found in pins.items()}
    assert f"Helm is tested with {used['helm']} and {used['helm4']}" in page
    assert chart["kubeVersion"] == f">={rows['Kubernetes'].partition(' ')[0]}.0-0"

    def minors(text: str) -> set[str]:
        """`3.11 to 3.13` and `2.20, 2.21` as the minor versions of one major."""
        first, _, last = text.replace(", ", " to ").partition(" to ")
        major, least = first.split(".")
        return {f"{major}.{minor}" for minor in range(int(least), int(last.partition(".")[2]) + 1)}

    def allowed(bounds: str, major: int) -> set[str]:
        return {f"{major}.{minor}" for minor in range(40) if f"{major}.{minor}.0" in SpecifierSet(bounds)}

    assert minors(rows["Python of `trainjob`"]) == allowed(operator["project"]["requires-python"], 3)
    assert rows["Python of a training image"] == f"{trainer['project']['requires-python'][2:]} or newer"
    asked = map(Requirement, trainer["project"]["optional-dependencies"]["gpu"])
    extra = {one.name: str(one.specifier) for one in asked}
    assert minors(rows["TensorFlow"]) == allowed(extra["tensorflow"], 2)
    assert minors(rows["Keras"]) == allowed(extra["keras"], 3)
