"""The evaluator's results, as the training reads them."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from trainjob_trainer import evaluation
from trainjob_trainer.evaluation import (
    Evaluation,
    EvaluatorScores,
    ResultsFile,
    Scored,
    tell_scoring,
    touch_scoring,
)
from trainjob_trainer.reporting.progress import ProgressFile


def add(folder: Path, step: int, loss: float) -> None:
    ResultsFile(folder, folder / "logs").add(Evaluation(step, {"loss": loss}, final=False))


def test_what_is_new_is_read_once(tmp_path: Path) -> None:
    scores = EvaluatorScores(tmp_path)
    assert (scores.size(), scores.read(0)) == (0, ([], 0))
    add(tmp_path, 10, 0.5)
    first, end = scores.read(0)
    assert first == [Scored(10, {"loss": 0.5})]
    assert end == scores.size()
    assert scores.read(end) == ([], end)
    add(tmp_path, 20, math.inf)
    assert scores.read(end)[0] == [Scored(20, {"loss": math.inf})]
    assert len(scores.read(scores.size() + 1)[0]) == 2


def test_a_line_under_way_is_left_for_later_and_a_spoiled_one_is_passed_over(tmp_path: Path) -> None:
    scores, path = EvaluatorScores(tmp_path), tmp_path / "evaluations.jsonl"
    good = '{"step": 10, "metrics": {"loss": 1}}\n'
    path.write_text(good + "spoiled\n[1]\n" + good[:9])
    found, end = scores.read(0)
    assert [one.step for one in found] == [10]
    path.write_text(path.read_text() + good[9:])
    assert [one.step for one in scores.read(end)[0]] == [10]


def test_a_long_evaluation_shows_that_it_gets_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell_scoring(tmp_path, 30)
    os.utime(tmp_path / "scoring.json", ns=(0, 0))
    told = evaluation.BatchesTold(ProgressFile(None), tmp_path)
    told.on_test_batch_end(0)
    assert EvaluatorScores(tmp_path).signs_of_life()[1] == 0
    monkeypatch.setattr(evaluation, "_SECONDS_BETWEEN_SIGNS", 0.0)
    told.on_test_batch_end(1)
    assert EvaluatorScores(tmp_path).signs_of_life()[1] > 0


def test_which_checkpoint_is_being_scored(tmp_path: Path) -> None:
    scores = EvaluatorScores(tmp_path / "evaluator")
    assert scores.scoring() is None
    assert scores.signs_of_life() == (0, 0)
    touch_scoring(tmp_path / "evaluator")
    tell_scoring(tmp_path / "evaluator", 30)
    assert scores.scoring() is None
    (tmp_path / "evaluator").mkdir()
    tell_scoring(tmp_path / "evaluator", 30)
    assert scores.scoring() == 30
    signs = scores.signs_of_life()
    os.utime(tmp_path / "evaluator" / "scoring.json", ns=(0, 0))
    assert scores.signs_of_life() != signs
    touch_scoring(tmp_path / "evaluator")
    assert scores.signs_of_life()[1] > 0
    (tmp_path / "evaluator" / "scoring.json").write_text("{}")
    assert scores.scoring() is None
