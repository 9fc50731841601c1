"""The benchmark of recovery runs on a cluster, measures what its page says, and leaves nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from testbed.claims import NodeCluster

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[3]
GUARD_SECONDS = 500
SCRIPT = "benchmarks/recovery.py"
SECTION = (ROOT / "docs" / "benchmarks.md").read_text().partition(SCRIPT)[2].partition("\n## ")[0]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *words]
    return subprocess.run(  # noqa: PLW1510 - the exit code is looked at
        command, cwd=ROOT, capture_output=True, text=True, timeout=GUARD_SECONDS
    )


@pytest.fixture(scope="module")
def result(installed: NodeCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not installed.has_shared_storage():
        pytest.skip("the benchmark asks for a claim that several nodes share")
    words = ["--kubeconfig", str(installed.kubeconfig), "--kubectl", installed.kubectl_program]
    if installed.folder is not None:
        words += ["--node-folder", str(tmp_path_factory.mktemp("volume"))]
    done = run(*words, "--rounds", "1")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    made: dict[str, Any] = json.loads(line)
    return made


def test_it_measures(result: dict[str, Any]) -> None:
    (measured,) = result["rounds"]
    assert 0 < measured["until_started"] < measured["seconds"] == result["median_seconds"]
    assert 0 <= measured["steps_lost"] < 2 * result["checkpoint_every"]
    assert len(result["import_seconds"]) == 2
    assert all(seconds > 0 for seconds in result["import_seconds"])
    assert (result["place"], result["kind"], result["warm"]) == ("cluster", "worker", False)


def test_its_namespace_and_volume_have_gone(installed: NodeCluster, result: dict[str, Any]) -> None:
    assert result
    names = [
        item["metadata"]["name"] for kind in ("namespace", "pv") for item in installed.get(kind)["items"]
    ]
    assert not [name for name in names if name.startswith("trainjob-benchmark-")]


def test_the_page_names_what_is_printed(result: dict[str, Any]) -> None:
    fields = re.findall(r"^\| (`.*?`) \|", SECTION.partition("| Field |")[2], re.MULTILINE)
    named = {name.removeprefix("rounds[].") for name in re.findall(r"`([^`]+)`", " ".join(fields))}
    assert named - {"training_went_on"} <= result.keys() | result["rounds"][0].keys()
    assert result["rounds"][0].keys() <= named


def test_the_commands_of_the_page_have_options_and_kinds_that_there_are() -> None:
    told = run("--help").stdout
    shown = set(re.findall(r"(--[a-z][a-z-]+)", SECTION))
    assert shown <= set(re.findall(r"(--[a-z-]+)", told))
    kinds = re.findall(r"^\| `(\w+)` \|", SECTION.partition("| Field |")[0], re.MULTILINE)
    assert kinds == re.findall(r"^  (\w+) +[a-z]", told.partition("kinds:")[2], re.MULTILINE)
