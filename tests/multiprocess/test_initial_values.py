"""Variables begin with the first worker's values, whatever each worker computes, with few broadcasts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.trainer.processes import WorkerGroup

SCRIPT = Path(__file__).parent / "scripts" / "initial_values.py"
BROADCASTS = {
    "seeded": 0,
    "unseeded": 6,
    "of_all_types": 6,
    "one_of_two": 1,
    "trained_within_the_scope": 1,
    "created_in_a_step": 1,
    "after_an_error": 1,
}
"""By case; TensorFlow by itself has one for each variable."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each worker tells, by case."""
    folder = tmp_path_factory.mktemp("initial")
    with WorkerGroup(SCRIPT, folder / "output", arguments=(str(folder),)) as group:
        assert set(group.wait().values()) == {0}, group.report
    return [json.loads((folder / f"worker-{index}.json").read_text()) for index in (0, 1)]


@pytest.mark.parametrize("case", BROADCASTS)
def test_all_workers_begin_with_the_same_values(told: list[dict[str, Any]], case: str) -> None:
    first, second = (one[case]["values"] for one in told)
    assert first == second


@pytest.mark.parametrize("case", BROADCASTS)
def test_only_what_differs_is_broadcast(told: list[dict[str, Any]], case: str) -> None:
    assert [one[case]["broadcasts"] for one in told] == [BROADCASTS[case]] * 2


def test_the_values_are_the_first_workers(told: list[dict[str, Any]]) -> None:
    for one in told:
        assert one["of_all_types"]["values"] == [
            "True",
            "[1, 1, 1]",
            "[[1, 5]]",
            "1.0",
            "[1.0, -0.0, inf]",
            "[]",
            "1.0",
        ]
        assert one["trained_within_the_scope"]["values"] == ["2.0", "2.0"]
        assert one["created_in_a_step"]["values"] == one["after_an_error"]["values"] == ["1.0"]
