"""A namespace that attacks the controller in every way at once harms nobody but itself.

`benchmarks/tenants.py` is run at a small size. How long the honest namespace's jobs take is printed, not
asserted: the benchmark at full size asserts it, and that the Lease stays where it is.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from testbed import Cluster

from support.kube.real_kube import install_crd

ROOT = Path(__file__).parents[3]
SCRIPT = "benchmarks/tenants.py"
SECTION = (ROOT / "docs" / "benchmarks.md").read_text().partition(SCRIPT)[2].partition("\n## ")[0]
GUARD_SECONDS = 540
SMALL = (
    *("--seconds", "8", "--rate", "2", "--lifetime", "6", "--silent", "30", "--liars", "1", "--giant", "60"),
    *("--wrong", "13", "--hoarded", "3", "--storm-rate", "8", "--storm-jobs", "4", "--most", "inf"),
    "--no-leader-elect",  # on a busy machine the API server alone may take longer than a Lease lasts
)


def _run(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, "--kubeconfig", str(cluster.kubeconfig), *words]
    return subprocess.run(  # noqa: PLW1510 - the exit code is looked at
        command, cwd=ROOT, capture_output=True, text=True, timeout=GUARD_SECONDS
    )


@pytest.fixture(scope="module")
def result(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    install_crd(control_plane)
    log = tmp_path_factory.mktemp("tenants") / "controller.log"
    done = _run(control_plane, *SMALL, "--log", str(log))
    assert done.stdout, done.stderr
    made: dict[str, Any] = json.loads(done.stdout)
    print(json.dumps(made, indent=1), log.read_text()[-5000:], sep="\n")
    return made


def test_no_promise_is_broken(result: dict[str, Any]) -> None:
    """Honest jobs complete; hostile ones are told what is wrong; nothing unclean or planted gets through."""
    assert result["broken"] == []


def test_the_controller_works_on_within_its_memory(result: dict[str, Any]) -> None:
    controller = result["controller"]
    assert (controller["restarts"], controller["tracebacks"]) == (0, 0)
    assert controller["peak_mib"] <= controller["limit_mib"]


def test_all_was_tried(result: dict[str, Any]) -> None:
    """An attack that never began proves nothing."""
    deeds = result["hostile"]["deeds"]
    assert {
        "add",
        "drop",
        "scale",
        "annotate",
        "label",
        "secrets",
        "configmaps",
        "services",
        "pods",
    } <= deeds.keys()
    assert deeds["trainjobs"] >= 30 + 6 + 4 + 13 + 3
    assert result["alone"]["jobs"] == result["beside"]["jobs"] == 16
    assert all(
        result[phase][what]["p99_ms"] for phase in ("alone", "beside") for what in ("creation", "interval")
    )


# -- what the figures come to --------------------------------------------------------------------------


def _load(name: str) -> ModuleType:
    """Import a file of the benchmarks, whose folder can't be on the path: it has an operator.py."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


figures = _load("tenant_figures")


def _phase(*seconds: float, **more: Any) -> Any:
    return figures.Phase(seconds, seconds, seconds, seconds, **more)


def _service(**changes: Any) -> Any:
    well = {"limit_bytes": 512 << 20, "peak_bytes": 80 << 20, "restarts": 0, "lease_transitions": 0}
    return figures.Service(
        **{
            **well,
            "slowest_health": 0.1,
            "kept_seconds": 0.1,
            "patience_seconds": 5.0,
            "tracebacks": 0,
            "log_bytes": 9,
            **changes,
        }
    )


def _hostile(**job: Any) -> dict[str, Any]:
    told = {"state": "Failed", "message": "spec.template: is too large", "refusable": True, **job}
    return {"jobs": {"big": told}, "unclean": [], "effects": []}


@pytest.mark.parametrize(
    ("values", "percent", "found"),
    [
        ([3.0, 1.0, 2.0], 50, 2.0),
        ([3.0, 1.0, 2.0], 99, 3.0),
        ([1.0] * 99 + [9.0] * 2, 99, 9.0),
        ([5.0], 1, 5.0),
    ],
)
def test_a_percentile_is_one_of_the_values(values: list[float], percent: float, found: float) -> None:
    assert figures.percentile(values, percent) == found


def test_of_no_values_there_is_no_percentile() -> None:
    assert math.isnan(figures.percentile([], 99))
    assert figures.spread([]) == {"p50_ms": None, "p99_ms": None}


def test_an_agent_that_is_not_called_again_waits_until_its_end() -> None:
    assert figures.intervals([1.0, 2.0, 4.0, 30.0], 1.0, 10.0) == [1.0, 2.0, 6.0]


@pytest.mark.parametrize(
    ("beside", "slow"),
    [
        (_phase(0.1, 0.2), 0),
        (_phase(0.1, 0.4), 0),
        (_phase(0.1, 0.41), 2),
        (_phase(), 2),  # nothing was measured
    ],
)
def test_twice_as_long_is_the_most(beside: Any, slow: int) -> None:
    assert len(figures.too_slow(figures.ratios(_phase(0.1, 0.2), beside), 2.0)) == slow


@pytest.mark.parametrize(
    ("service", "phase", "hostile", "word"),
    [
        (_service(), _phase(1.0), _hostile(), ""),
        (_service(restarts=2), _phase(1.0), _hostile(), "ended 2 times"),
        (_service(lease_transitions=1), _phase(1.0), _hostile(), "Lease"),
        (_service(peak_bytes=513 << 20), _phase(1.0), _hostile(), "513 MiB: the chart allows 512"),
        (_service(kept_seconds=5.1), _phase(1.0), _hostile(), "worked 5.1 s"),
        (_service(slowest_health=60.0), _phase(1.0), _hostile(), ""),
        (_service(tracebacks=1), _phase(1.0), _hostile(), "tracebacks"),
        (
            _service(),
            _phase(1.0, unfinished={"a-1": "Running"}),
            _hostile(),
            "1 of 1 honest jobs did not complete: a-1 (Running)",
        ),
        (_service(), _phase(1.0), _hostile(message=""), "told nothing"),
        (_service(), _phase(1.0), _hostile(state="Running"), "was taken"),
        (_service(), _phase(1.0), _hostile(message="no"), "names no field"),
        (_service(), _phase(1.0), _hostile(message="no", refusable=False), ""),
        (_service(), _phase(1.0), {**_hostile(), "unclean": ["big.message"]}, "unclean"),
        (_service(), _phase(1.0), {**_hostile(), "effects": ["pod a"]}, "took effect: pod a"),
    ],
)
def test_a_broken_promise_is_named(service: Any, phase: Any, hostile: dict[str, Any], word: str) -> None:
    found = figures.broken(service, [phase], hostile)
    assert word in " ".join(found)
    assert bool(found) == bool(word)


@pytest.mark.parametrize(
    ("status", "where"),
    [
        ({"message": "all is well: 3 of 4, ü"}, []),
        ({"message": "\x1b[31mred"}, ["job.message"]),
        ({"message": "two\nlines"}, ["job.message"]),
        ({"firstFailure": {"logTail": "two\nlines\tand a tab"}}, []),
        ({"firstFailure": {"logTail": "a\x07bell"}}, ["job.firstFailure.logTail"]),
        ({"conditions": [{"reason": "StartTimeout"}]}, []),
        ({"conditions": [{"reason": "Bad reason"}]}, ["job.conditions[].reason"]),
        ({"conditions": [{"reason": ""}]}, ["job.conditions[].reason"]),
        ({"progress": {"metrics": {"\u202eloss": "1"}}}, ["job.progress.metrics.<key>"]),
    ],
)
def test_what_drives_a_terminal_is_unclean(status: dict[str, Any], where: list[str]) -> None:
    assert [text.partition(": ")[0] for text in figures.unclean("job", status)] == where


@pytest.mark.parametrize(("quantity", "size"), [("512Mi", 512 << 20), ("1Gi", 1 << 30), ("9", 9)])
def test_a_limit_of_the_chart_is_read(quantity: str, size: int) -> None:
    assert figures.memory_bytes(quantity) == size


# -- the page ------------------------------------------------------------------------------------------


def test_the_page_names_what_is_printed(result: dict[str, Any]) -> None:
    first_cells = "".join(re.findall(r"^\|(.*?)\|", SECTION, re.MULTILINE))
    named = set(re.findall(r"`([\w.]+)`", first_cells))
    assert result.keys() - {"benchmark"} <= named
    assert result["controller"].keys() <= {name.removeprefix("controller.") for name in named}


def test_the_commands_of_the_page_have_options_that_there_are(control_plane: Cluster) -> None:
    shown = set(re.findall(r"(--[a-z]+[a-z-]*)", SECTION))
    assert shown
    assert shown <= set(re.findall(r"(--[a-z-]+)", _run(control_plane, "--help").stdout))
