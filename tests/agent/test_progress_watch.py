"""The progress file, seen from outside the process that writes it."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from trainjob_trainer.agent.stall import ProgressWatch
from trainjob_trainer.reporting.progress import ProgressFile


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def replace(path: Path, text: str) -> None:
    new = path.with_name("new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def test_a_report_of_the_trainer_is_read(tmp_path: Path) -> None:
    clock = Clock()
    watch = ProgressWatch(tmp_path / "progress.json", clock=clock)
    watch.begin()
    assert (watch.look(), watch.report, watch.age) == (False, None, None)
    progress = ProgressFile(tmp_path / "progress.json", now=lambda: 7.0)
    progress.update(state="training", step=3, loss=float("nan"))
    assert watch.look()
    assert watch.report == {"state": "training", "step": 3, "loss": "nan", "time": 7.0, "pid": os.getpid()}
    clock.now += 2
    assert (watch.look(), watch.age) == (False, 2.0)
    progress.flush()
    assert (watch.look(), watch.age) == (False, 0.0)  # another file with the same words is a sign of life


def test_a_pause_ends_with_another_step_or_state(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "progress.json"
    watch = ProgressWatch(path, clock=clock)
    watch.begin()
    pauses = []
    for report in (
        {"state": "starting"},
        {"state": "training", "step": 0},
        {"state": "training", "step": 0, "time": 1},
    ):
        clock.now += 10
        replace(path, json.dumps(report))
        watch.look()
        pauses.append(watch.pause)
    assert pauses == [0.0, 0.0, 10.0]
    watch.begin()
    assert watch.pause == 0.0


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"step": 5}', '{"state": 5}', "\x00", "[" * 100_000])
def test_a_malformed_report_leaves_the_one_before(tmp_path: Path, text: str) -> None:
    path = tmp_path / "progress.json"
    watch = ProgressWatch(path)
    watch.begin()
    replace(path, '{"state": "training", "step": 1}')
    assert watch.look()
    replace(path, text)
    assert not watch.look()
    assert watch.report == {"state": "training", "step": 1}
    path.unlink()
    assert not watch.look()
    assert watch.report == {"state": "training", "step": 1}


def test_a_new_start_knows_nothing_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    report: dict[str, Any] = {"state": "training", "step": 1}
    replace(path, json.dumps(report))
    watch = ProgressWatch(path)
    watch.begin()
    assert not path.exists()
    for _ in range(2):
        replace(path, json.dumps(report))
        assert watch.look()
        assert watch.report == report
        watch.begin()
        assert (watch.look(), watch.report, watch.age) == (False, None, None)


def test_a_file_that_can_not_be_removed_is_not_this_starts(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    path.mkdir()
    watch = ProgressWatch(path)
    watch.begin()
    assert (watch.look(), watch.report) == (False, None)


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([], False),
        ([{"state": "starting"}], False),
        ([{"state": "starting"}, {"state": "training", "step": 40}], False),
        ([{"state": "training", "step": 40}, {"state": "training", "step": 40, "loss": 1.0}], False),
        ([{"state": "training", "step": 40}, {"state": "training", "step": 41}], True),
        ([{"state": "training", "step": 41, "stepSeconds": 0.1}], True),
    ],
)
def test_a_step_of_its_own_differs_from_the_one_it_begins_at(
    tmp_path: Path, reports: list[dict[str, Any]], expected: bool
) -> None:
    path = tmp_path / "progress.json"
    watch = ProgressWatch(path)
    watch.begin()
    for report in reports:
        replace(path, json.dumps(report))
        watch.look()
    assert watch.has_stepped is expected
    watch.begin()
    assert not watch.has_stepped


def test_a_report_that_cannot_be_read_for_a_moment_is_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = ProgressWatch(tmp_path / "progress.json")
    (tmp_path / "progress.json").write_text('{"state": "finished"}')
    with monkeypatch.context() as away:
        away.setattr(Path, "open", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "away")))
        assert not watch.look()
    assert watch.look()
    assert watch.report == {"state": "finished"}
