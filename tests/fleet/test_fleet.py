"""A small fleet on a control plane of its own: jobs end as they should, and restarts cost nothing.

`benchmarks/fleet.py` is run at a small size, and its soak for ten minutes. How long anything takes is
printed, not asserted.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = "benchmarks/fleet.py"
SECTION = (ROOT / "docs" / "benchmarks.md").read_text().partition(f"`{SCRIPT}`")[2].partition("\n## ")[0]
SMALL = ("--jobs", "40", "--rate", "4", "--lifetime", "15", "--workers", "2", "--nodes", "3", "--seed", "3")


def run(*words: str, seconds: float = 900) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "testbed")}
    done = subprocess.run(  # noqa: PLW1510 - the exit code is looked at
        [sys.executable, SCRIPT, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.stdout, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    print(json.dumps(made, indent=1), done.stderr)
    assert done.returncode == bool(made["broken"])
    return made


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(*SMALL, "--finished", "60", "--running", "10", "--huge", "60")


def test_no_promise_is_broken(result: dict[str, Any]) -> None:
    """Jobs end as they should; restarts of controllers and of the API server change nothing."""
    assert result["broken"] == []


def test_all_was_tried(result: dict[str, Any]) -> None:
    """A fate that no job had proves nothing."""
    jobs = result["jobs"]
    assert jobs["fates"].keys() == {"well", "killed", "evicted", "in-place", "invalid"}
    assert jobs["states"] == {"Complete": 40 - jobs["fates"]["invalid"], "Failed": jobs["fates"]["invalid"]}
    assert jobs["agent_calls_a_job"] > 1


@pytest.mark.parametrize("part", ["start", "restart", "upgrade", "rollback"])
def test_a_start_writes_nothing(result: dict[str, Any], part: str) -> None:
    assert result[part]["writes"] == 0


@pytest.mark.parametrize("role", ["leader", "standby"])
def test_no_more_memory_is_taken_once_the_jobs_are_gone(result: dict[str, Any], role: str) -> None:
    assert result["given_back"][f"{role}_mib"] <= result["jobs"][f"{role}_mib"]


def test_nothing_grows_in_ten_minutes() -> None:
    """The nightly part: `--soak 3600` is for the docs."""
    small = ("--jobs", "0", "--finished", "0", "--running", "20", "--workers", "2")
    made = run(*small, "--soak", "600", "--soak-rate", "0.25", seconds=1800)
    assert made["broken"] == []
    ends = made["soak"]["finished"]
    assert sum(ends.values()) == made["soak"]["jobs"]
    assert all(ends.values())


def test_the_page_names_what_is_printed(result: dict[str, Any]) -> None:
    named = set(re.findall(r"`([\w.]+)`", "".join(re.findall(r"^\|(.*?)\|", SECTION, re.MULTILINE))))
    parts = ("start", "jobs", "given_back", "beside_huge", "upgrade", "api_server")
    printed = {f"{part}.{key}" for part in parts for key in result[part]}
    assert printed | (result.keys() - {"benchmark", "soak", *parts}) | {"soak.looks"} <= named


def test_the_commands_of_the_page_have_options_that_there_are() -> None:
    shown = set(re.findall(r"(--[a-z]+[a-z-]*)", SECTION))
    help_text = subprocess.run(
        [sys.executable, SCRIPT, "--help"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "testbed")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown
    assert shown <= set(re.findall(r"(--[a-z-]+)", help_text))
