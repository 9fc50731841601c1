"""The workflows on GitHub: what can be known about them without running them there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbed.programs import program

from versions import ROOT, TELLING, UNPUBLISHED, read_version, write_version

FOLDER = ROOT / ".github"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in (FOLDER / "workflows").glob("*.yml")}
MAKEFILE = (ROOT / "Makefile").read_text()
# Written out, so that a workflow that begins to publish has to be named here.
PUBLISHING = {"release"}


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.nightly
def test_actionlint() -> None:
    files = sorted((FOLDER / "workflows").glob("*.yml"))
    command = [program("actionlint"), "-no-color", "-shellcheck=", "-pyflakes=", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_zizmor() -> None:
    zizmor = Path(sys.executable).with_name("zizmor")
    command = [zizmor, "--offline", "--strict-collection", "--no-progress", "--format=plain", FOLDER]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_by_commit(name: str) -> None:
    used = re.findall(r"uses: (.*)", (FOLDER / "workflows" / f"{name}.yml").read_text())
    assert used
    for action in used:
        assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action), action


@pytest.mark.parametrize("name", WORKFLOWS)
def test_make_targets_exist(name: str) -> None:
    for step in steps(WORKFLOWS[name]):
        for target in re.findall(r"\bmake ([\w-]+)", step.get("run", "")):
            assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target


def test_the_program_that_lists_an_image_is_the_one_that_is_tested() -> None:
    package, version = WORKFLOWS["release"]["env"]["SYFT"].split("@")
    tested = (ROOT / "testbed" / "go" / "syft" / "go.mod").read_text()
    assert f"{package.removesuffix('/cmd/syft')} {version}" in tested


def test_only_a_release_may_publish() -> None:
    for name, workflow in WORKFLOWS.items():
        granted = {right for job in workflow["jobs"].values() for right in job["permissions"].items()}
        assert workflow["permissions"] == {}
        assert (granted != {("contents", "read")}) == (name in PUBLISHING)


def test_nothing_is_published_before_all_of_it_is_built_and_checked() -> None:
    jobs = WORKFLOWS["release"]["jobs"]

    def waits_for(name: str) -> set[str]:
        needs = jobs[name].get("needs", [])
        direct = {needs} if isinstance(needs, str) else set(needs)
        return direct.union(*map(waits_for, direct)) if direct else set()

    assert jobs["check"]["permissions"] == {"contents": "read"}
    assert "make release-check" in str(jobs["check"]["steps"])
    assert all("check" in waits_for(name) for name in jobs.keys() - {"check"})
    signing = {name for name, job in jobs.items() if "id-token" in job["permissions"]}
    assert all(waits_for(name) >= {"try", "try-gpu"} for name in signing)


def test_what_is_tested_and_named_is_what_was_built_once() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    building = [name for name, job in jobs.items() if "docker build" in str(job["steps"])]
    assert building == ["images"]
    built = set(re.findall(r"^ *build ([\w-]+ \w+) \w+$", jobs["images"]["steps"][-1]["run"], re.MULTILINE))
    matrix = jobs["publish"]["strategy"]["matrix"]["include"]
    assert {f"{one['image']} {one['repository']}" for one in matrix} == built
    assert jobs["images"]["outputs"].keys() == {one.split()[0] for one in built}
    stages = re.findall(r"^FROM .* AS (\w+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert {one.split()[1] for one in built} <= set(stages)
    for name in ("try", "try-gpu", "dist", "publish"):
        assert "needs.images.outputs" in str(jobs[name]["steps"])
    assert "--operator" in str(jobs["dist"]["steps"])


@pytest.mark.cluster
def test_the_steps_that_build_packages_and_chart(tmp_path: Path) -> None:
    """In a copy of the tree as on the day of a release: its version has a section, and no page denies it."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    copy = tmp_path / "copy"
    for name in filter(None, tracked.stdout.split("\0")):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    write_version(read_version(), date(2026, 12, 1), copy)
    for name in TELLING:
        page = copy / name
        page.write_text(UNPUBLISHED.sub("", " ".join(page.read_text().split())))
    (step,) = (one for one in WORKFLOWS["release"]["jobs"]["dist"]["steps"] if one.get("name") == "build")
    env = {
        **os.environ,
        "GITHUB_REF_NAME": f"v{read_version()}",
        "GITHUB_REPOSITORY": "trainjob/trainjob",
        "OPERATOR": f"sha256:{'5e' * 32}",
        "PATH": f"{program('helm').parent}:{os.environ['PATH']}",
    }
    assert step["env"].keys() == {"OPERATOR"}
    command = ["bash", "-eo", "pipefail", "-c", step["run"]]
    done = subprocess.run(command, cwd=copy, env=env, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (copy / "notes.md").read_text().startswith("### ")
    assert {f"trainjob-{read_version()}.tgz", "SHA256SUMS", "python"} <= {
        one.name for one in (copy / "dist").iterdir()
    }


def test_dependabot_covers_what_is_pinned() -> None:
    updates = yaml.safe_load((FOLDER / "dependabot.yml").read_text())["updates"]
    assert {one["package-ecosystem"] for one in updates} == {"github-actions", "docker", "uv"}
    assert all(one["cooldown"]["default-days"] >= 7 for one in updates)
    (python,) = [one for one in updates if one["package-ecosystem"] == "docker"]
    assert python["ignore"]


@pytest.mark.parametrize(
    "path", sorted((FOLDER / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name
)
def test_issue_forms(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert form.keys() >= {"name", "description", "body"}
    assert all(part["type"] == "markdown" or part["id"] for part in form["body"])
