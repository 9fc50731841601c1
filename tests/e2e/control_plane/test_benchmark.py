"""The benchmark of the controller runs, measures what its page says, and leaves nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from testbed import Cluster

from support.kube.real_kube import await_crd

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[3]
GUARD_SECONDS = 300
PAGE = (ROOT / "docs" / "benchmarks.md").read_text()


def run(cluster: Cluster, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, f"benchmarks/{script}.py", "--kubeconfig", str(cluster.kubeconfig), *words]
    return subprocess.run(  # noqa: PLW1510 - the exit code is looked at
        command, cwd=ROOT, capture_output=True, text=True, timeout=GUARD_SECONDS
    )


@pytest.fixture(scope="module")
def cluster(control_plane: Cluster) -> Cluster:
    control_plane.apply(ROOT / "manifests" / "crd" / "crd.yaml")
    await_crd(control_plane, "trainjobs.trainjob.dev")
    return control_plane


@pytest.fixture(scope="module")
def result(cluster: Cluster) -> dict[str, Any]:
    words = ("--start-controller", "--workers", "2", "--paced", "3", "--rate", "20", "--burst", "4")
    done = run(cluster, "operator", *words)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    made: dict[str, Any] = json.loads(line)
    return made


def test_it_measures(result: dict[str, Any]) -> None:
    assert (result["pods_per_job"], result["objects_per_job"]) == (3, 6)  # Service, NetworkPolicy and Secret
    assert (result["paced"]["jobs"], result["burst"]["jobs"]) == (3, 4)
    times = [*result["burst"]["raw_seconds"], result["burst"]["seconds"], result["burst"]["ratio"]]
    times += [part[key] for part in (result["paced"], result["paced"]["raw"]) for key in ("p50_ms", "p99_ms")]
    assert all(time > 0 for time in times)


def test_its_namespace_goes(cluster: Cluster, result: dict[str, Any]) -> None:
    assert result
    for namespace in cluster.get("namespace")["items"]:
        if namespace["metadata"]["name"].startswith("trainjob-benchmark-"):
            words = ("wait", f"namespace/{namespace['metadata']['name']}", "--for=delete")
            cluster.kubectl(*words, f"--timeout={GUARD_SECONDS}s", timeout=GUARD_SECONDS)


def test_the_failover_is_measured(cluster: Cluster) -> None:
    done = run(cluster, "failover", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made.pop("benchmark") == "failover"
    assert all(len(seconds) == 1 and seconds[0] > 0 for seconds in made.values())
    assert set(re.findall(r"`(sig\w+_seconds)`", PAGE)) == made.keys()


def test_the_page_names_what_is_printed(result: dict[str, Any]) -> None:
    named = set(re.findall(r"`(?:paced|burst)\.(\w+)`", PAGE))
    assert named == result["paced"].keys() | result["burst"].keys()


@pytest.mark.parametrize("script", ["operator", "failover"])
def test_the_commands_of_the_page_have_options_that_there_are(cluster: Cluster, script: str) -> None:
    commands = re.findall(rf"^\$ python benchmarks/{script}.py (.*)", PAGE, re.MULTILINE)
    assert commands
    shown = set(re.findall(r"(--[a-z-]+)", "".join(commands)))
    assert shown <= set(re.findall(r"(--[a-z-]+)", run(cluster, script, "--help").stdout))
