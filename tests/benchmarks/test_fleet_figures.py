"""What the benchmark of a fleet makes of its measurements."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def _load(name: str) -> ModuleType:
    """Import a file of the benchmarks, whose folder can't be on the path: it has an operator.py."""
    path = Path(__file__).parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


figures = _load("fleet_figures")
FATES = {fate.name: fate for fate in figures.FATES}

PAGE = """\
# TYPE trainjob_api_requests counter
trainjob_api_requests_total{verb="get",resource="leases",code="200"} 7
trainjob_api_requests_total{verb="update",resource="leases",code="200"} 5
trainjob_api_requests_total{verb="list",resource="pods",code="200"} 2
trainjob_api_requests_total{verb="create",resource="pods",code="201"} %d
trainjob_api_requests_total{verb="create",resource="pods",code="409"} 1
# TYPE trainjob_queue_seconds histogram
trainjob_queue_seconds_bucket{le="0.1"} %d
trainjob_queue_seconds_bucket{le="0.2"} %d
trainjob_queue_seconds_bucket{le="+Inf"} %d
trainjob_queue_seconds_sum 1
trainjob_queue_seconds_count %d
"""


def counts(creations: int, *buckets: int) -> Any:
    return figures.read_counts(PAGE % (creations, *buckets, buckets[-1]))


def test_only_what_was_counted_meanwhile_counts() -> None:
    made = counts(14, 10, 20, 20) - counts(4, 0, 0, 0)
    assert made.requests() == 10
    assert made.writes() == {"create pods": 10}
    assert made.total("trainjob_api_requests_total", verb="create", code="201") == 10


def test_the_lease_and_reads_are_no_writes() -> None:
    found = counts(3, 0, 0, 0)
    assert found.requests() == 6
    assert found.writes() == {"create pods": 4}


@pytest.mark.parametrize(
    ("buckets", "share", "value"),
    [
        ((100, 100, 100), 0.99, 0.099),
        ((0, 100, 100), 0.5, 0.15),
        ((50, 100, 100), 0.99, 0.198),
        ((0, 0, 10), 0.99, 0.2),  # beyond the last bucket: its bound
    ],
)
def test_a_quantile_is_interpolated(buckets: tuple[int, ...], share: float, value: float) -> None:
    assert counts(0, *buckets).quantile("trainjob_queue_seconds", share) == pytest.approx(value)


def test_of_no_values_there_is_no_quantile() -> None:
    assert math.isnan(counts(0, 0, 0, 0).quantile("trainjob_queue_seconds", 0.99))
    assert figures.milliseconds(math.nan) is None


@pytest.mark.parametrize(
    ("fate", "state", "counted", "uncounted", "is_right"),
    [
        ("well", "Complete", 0, 0, True),
        ("well", "Complete", 1, 0, False),
        ("well", "Complete", 0, 1, False),
        ("well", "Failed", 0, 0, False),
        ("killed", "Complete", 1, 0, True),
        ("evicted", "Complete", 0, 1, True),
        ("evicted", "Complete", 1, 0, False),
        ("in-place", "Complete", 1, 0, True),
        ("invalid", "Failed", 0, 0, True),
        ("invalid", "Complete", 0, 0, False),
    ],
)
def test_a_job_ends_as_its_fate_wants(
    fate: str, state: str, counted: int, uncounted: int, is_right: bool
) -> None:
    status = {"state": state, "restarts": {"counted": counted, "notCounted": uncounted}}
    assert (figures.what_is_wrong(FATES[fate], status) == "") == is_right


def test_a_job_without_a_status_has_not_ended_well() -> None:
    assert "None" in figures.what_is_wrong(FATES["well"], {})


def test_fates_are_the_seeds_and_all_come() -> None:
    drawn = [figures.fate_of(1, number).name for number in range(1000)]
    assert drawn == [figures.fate_of(1, number).name for number in range(1000)]
    assert drawn != [figures.fate_of(2, number).name for number in range(1000)]
    assert Counter(drawn).keys() == FATES.keys()
    assert Counter(drawn)["well"] > 700


SIXTH = figures.Look(seconds=100, resident_bytes=100 << 20, tasks=20, connections=8, watches=30)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({}, ""),
        ({"resident_bytes": 105 << 20}, ""),
        ({"resident_bytes": 106 << 20}, "memory has grown from 100.0 to 106.0 MiB"),
        ({"resident_bytes": 50 << 20, "tasks": 19, "connections": 0, "watches": 1}, ""),
        ({"tasks": 21}, "tasks have grown from 20 to 21"),
        ({"connections": 9}, "connections"),
        ({"watches": 31}, "watches"),
    ],
)
def test_growth_is_named(change: dict[str, Any], word: str) -> None:
    found = figures.growth(SIXTH, replace(SIXTH, **change))
    assert word in " ".join(found)
    assert bool(found) == bool(word)


def test_a_long_list_says_how_much_is_left_out() -> None:
    assert figures.listed(["a", "b", "c"], 2) == ["a", "b", "and 1 more"]
    assert figures.listed(["a", "b"], 2) == ["a", "b"]


def test_the_errors_of_tracebacks_are_found() -> None:
    log = """\
2026-11-25T21:01:31.515Z ERROR asyncio: an error occurred
Traceback (most recent call last):
  File "watching.py", line 88, in infinite_watch
    yield raw_event
GeneratorExit

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "contextlib.py", line 267, in __aexit__
RuntimeError: generator didn't stop
2026-11-25T21:01:31.600Z INFO controller.election: Released the lease
"""
    assert figures.errors_of_tracebacks(log) == ["GeneratorExit", "RuntimeError: generator didn't stop"]
