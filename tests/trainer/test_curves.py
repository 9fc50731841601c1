"""The curves of a process: thinned, of bounded size, whole over restarts, and read back from any text."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainjob_trainer.contract.curves import (
    LARGEST_CURVES,
    MOST_CURVES,
    MOST_POINTS,
    read_curves,
    thinned,
    write_curves,
)
from trainjob_trainer.reporting.progress import ProgressFile

steps = st.sets(st.integers(0, 2**63 - 1), min_size=1, max_size=99).map(sorted)


@pytest.mark.parametrize(
    ("points", "most", "kept"),
    [
        ([], 2, []),
        ([7], 2, [7]),
        ([1, 2, 3], 3, [1, 2, 3]),
        ([1, 2, 3], 2, [1, 3]),
        ([*range(10)], 4, [0, 4, 8, 9]),
        ([*range(10)], 6, [0, 2, 4, 6, 8, 9]),
        ([0, 1, 2, 3, 4, 100], 4, [0, 100]),
        ([0, 2**63 - 2, 2**63 - 1], 2, [0, 2**63 - 1]),
    ],
)
def test_points_are_kept_evenly(points: list[int], most: int, kept: list[int]) -> None:
    assert [*thinned(dict.fromkeys(points, 0.0), most)] == kept


@given(steps, st.integers(2, 50))
def test_the_first_and_the_last_point_stay_and_thinning_never_adds(points: list[int], most: int) -> None:
    kept = [*thinned({step: float(step) for step in points}, most)]
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert set(kept) <= set(points)
    assert len(kept) <= most
    assert thinned(dict.fromkeys(kept, 0.0), most) == dict.fromkeys(kept, 0.0)


@given(st.integers(0, 9), st.integers(1, 800), st.integers(2, 20))
def test_a_curve_that_is_thinned_while_it_grows_is_that_of_all_its_points(
    first: int, count: int, most: int
) -> None:
    grown: dict[int, float] = {}
    for step in range(first, first + count):
        grown[step] = 1.0
        if len(grown) > 4 * most:
            grown = thinned(grown, 2 * most)
    assert thinned(grown, most) == thinned(dict.fromkeys(range(first, first + count), 1.0), most)


names = st.text(max_size=20)
curves = st.dictionaries(
    names, st.dictionaries(st.integers(0, 10**12), st.floats(allow_nan=False, allow_infinity=False))
)


@settings(max_examples=settings.default.max_examples // 4)  # of hundreds of points each
@given(curves, st.integers(2, LARGEST_CURVES))
def test_text_is_never_too_long_and_reads_as_what_it_was_written_from(
    known: dict[str, dict[int, float]], largest: int
) -> None:
    texts = write_curves(known, largest)
    assert len(json.dumps(texts)) <= largest
    read = read_curves(texts)
    assert read_curves(write_curves(read)) == read  # figures are rounded once
    assert len(read) <= MOST_CURVES
    for name, points in read.items():
        assert set(points) <= set(known[name])
        assert all(points[step] == float(f"{known[name][step]:.5g}") for step in points)


@pytest.mark.parametrize(
    ("texts", "read"),
    [
        ({}, {}),
        ({"loss": "10:2.5 20:1.25e-05 30:-3"}, {"loss": {10: 2.5, 20: 1.25e-05, 30: -3.0}}),
        ({"loss": None, "a": 1, "b": {"1": 1}, "c": ["1:1"]}, {}),
        ({"loss": "20:1 10:2"}, {"loss": {10: 2.0, 20: 1.0}}),
        ({"loss": "", "b": "no points", "": "1:1", "a\x1b[31m": "1:1", "x" * 161: "1:1"}, {}),
        (
            {"loss": "1:nan 2:inf 3:1e+999 4:1_0 5:1.2.3 -6:1 7:1 8:\u0661 99999999999999999999:1"},
            {"loss": {7: 1.0}},
        ),
        ({"loss": f"{2**63}:1 {2**63 - 1}:2"}, {"loss": {2**63 - 1: 2.0}}),
        ({"loss": "1:1\n2:2\t3:3 4:4"}, {"loss": {4: 4.0}}),
        (
            {f"metric-{number}": "1:1" for number in range(99)},
            {f"metric-{number}": {1: 1.0} for number in range(MOST_CURVES)},
        ),
    ],
)
def test_what_is_no_point_is_left_out(texts: dict[str, str], read: dict[str, dict[int, float]]) -> None:
    assert read_curves(texts) == read


def slow(folder: Path, log: Path | None = None) -> ProgressFile:
    """Return a progress file by whose clock all changes are an eighth of a second apart, or more."""
    return ProgressFile(folder / "progress.json", log, clock=itertools.count(0.0, 0.125).__next__)


def reported(folder: Path) -> dict[str, dict[int, float]]:
    return read_curves(json.loads((folder / "progress.json").read_text()).get("curves", {}))


def lines(folder: Path, *results: object) -> Path:
    file = folder / "history.jsonl"
    file.write_text(
        "".join(f"{result if isinstance(result, str) else json.dumps(result)}\n" for result in results)
    )
    return file


def test_a_report_has_the_curves_of_the_process_whose_values_are_the_jobs(tmp_path: Path) -> None:
    progress = slow(tmp_path)
    progress.update(state="training", step=1, loss=9.0)
    progress.flush()
    assert "curves" not in json.loads((tmp_path / "progress.json").read_text())

    progress.keep_curves(tmp_path / "history.jsonl")
    progress.update(
        step=2, loss=2.0, metrics={"accuracy": 0.5, "text": "none", "list": [1.0], "bad": math.nan}
    )
    progress.update(step=3)  # says nothing of the loss
    progress.update(state="saving", step=4, loss=1.0, metrics={})
    progress.keep_curves(tmp_path / "history.jsonl")
    progress.flush()
    assert reported(tmp_path) == {"loss": {2: 2.0, 4: 1.0}, "accuracy": {2: 0.5}}


@pytest.mark.parametrize(
    ("before", "steps", "known"),
    [
        ([], range(3, 5), {3: 1.0, 4: 1.0}),
        # A later start's values count.
        ([10, 20, 30], [21, 22], {10: 0.5, 20: 0.5, 21: 1.0, 22: 1.0}),
        ([10, 20, 30, 20, 25], [26], {10: 0.5, 20: 0.5, 25: 0.5, 26: 1.0}),
        # Of many epochs their ends are enough.
        ([*range(10, 110, 10)], [101], dict.fromkeys(range(10, 110, 10), 0.5)),
    ],
)
def test_a_process_continues_the_curve_of_those_before_it(
    before: list[int], steps: Any, known: dict[int, float], tmp_path: Path
) -> None:
    progress = slow(tmp_path)
    progress.keep_curves(lines(tmp_path, *({"step": step, "metrics": {"loss": 0.5}} for step in before)))
    for step in steps:
        progress.update(state="training", step=step, loss=1.0)
    progress.flush()
    assert reported(tmp_path) == {"loss": known}


def test_epochs_replace_the_batches_once_there_are_many(tmp_path: Path) -> None:
    progress = slow(tmp_path)
    progress.keep_curves(tmp_path / "history.jsonl")
    for step in range(1, 101):
        progress.update(state="training", step=step, loss=5.0, metrics={})
        if step % 10 == 0:
            progress.end_epoch(loss=1.0, metrics={"val_loss": 2.0})
        if step == 90:
            progress.flush()
            few = reported(tmp_path)
    progress.flush()
    ends = [*range(10, 101, 10)]
    assert few["loss"] == {step: 1.0 if step % 10 == 0 else 5.0 for step in range(1, 91)}
    assert reported(tmp_path) == {"loss": dict.fromkeys(ends, 1.0), "val_loss": dict.fromkeys(ends, 2.0)}


def test_of_fast_steps_only_some_are_kept_and_the_last_one(tmp_path: Path) -> None:
    now = 0.0
    progress = ProgressFile(tmp_path / "progress.json", clock=lambda: now)
    progress.keep_curves(tmp_path / "history.jsonl")
    for step in range(1, 100):
        now = step * 0.015625
        progress.update(state="training", step=step, loss=1.0)
    progress.flush()
    steps = [*reported(tmp_path)["loss"]]
    assert (steps[0], steps[-1]) == (1, 99)
    assert 10 < len(steps) < 25


def test_the_evaluators_curve_is_that_of_its_results(tmp_path: Path) -> None:
    progress = slow(tmp_path)
    earlier = {"step": 10, "metrics": {"accuracy": 0.5}, "final": False, "time": 1.5}
    progress.keep_curves(lines(tmp_path, earlier, "", '{"step": 15, "met'))
    for final in (False, True):
        progress.update(state="evaluating", step=20)
        progress.update(step=20, evaluation={"step": 20, "metrics": {"accuracy": 0.75}, "final": final})
    progress.update(state="finished")
    assert reported(tmp_path) == {"accuracy": {10: 0.5, 20: 0.75}}


def test_a_training_that_had_finished_has_its_curve(tmp_path: Path) -> None:
    progress = slow(tmp_path)
    progress.keep_curves(lines(tmp_path, *({"step": step, "metrics": {"loss": 0.5}} for step in (1, 2))))
    progress.update(state="finished", step=2, already_finished=True)
    assert reported(tmp_path) == {"loss": {1: 0.5, 2: 0.5}}


@pytest.mark.parametrize(
    "history",
    ["\0\xff{", "[]", "7", '{"step": "1", "metrics": {"a": 1}}', '{"step": 1, "metrics": 3}', "[" * 9_999],
)
def test_no_damaged_history_disturbs_training(history: str, tmp_path: Path) -> None:
    progress = slow(tmp_path)
    progress.keep_curves(lines(tmp_path, history, '{"step": -1, "metrics": {"a": 1}}'))
    progress.update(state="training", step=1, loss=1.0)
    progress.flush()
    assert reported(tmp_path) == {"loss": {1: 1.0}}


def test_a_long_training_leaves_a_whole_curve_where_there_is_little_room(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    progress = slow(tmp_path, log)
    progress.keep_curves(tmp_path / "history.jsonl")
    many = {f"metric-{number}": 0.123456 for number in range(9)}
    for step in range(1, 2_001):
        progress.update(step=step, loss=1 / step, metrics=many)
    lines = tuple(f"{number} {'x' * 200}" for number in range(8))
    progress.update(state="finished", notices=lines)
    for path in (tmp_path / "progress.json", log):
        report = json.loads(path.read_text())
        curves = read_curves(report["curves"])
        assert [*curves] == ["loss", *many]
        assert sum(map(len, curves.values())) <= MOST_POINTS
        assert all(min(points) == 1 and max(points) == 2_000 for points in curves.values())
        assert (report["step"], report["metrics"]) == (2_000, many)
    assert log.stat().st_size <= 3072
    assert len(json.dumps(report["curves"])) > 500
