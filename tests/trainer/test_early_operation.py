from __future__ import annotations

import traceback

import pytest

from trainjob_trainer.distribution import early_operation
from trainjob_trainer.distribution.early_operation import explain_early_operation, is_early_operation


def test_a_line_that_was_not_seen_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_operation, "_first", [])  # other tests of this process ran operations

    assert "was built: before the trainer was imported. Workers" in str(explain_early_operation())


def test_the_line_that_was_seen_is_named() -> None:
    frame = traceback.FrameSummary("/app/train.py", 12, "main", line="tf.zeros(3)")

    assert "/app/train.py:12: tf.zeros(3)" in str(explain_early_operation(frame))


def test_only_tensorflows_own_complaint_counts() -> None:
    words = "Collective ops must be configured at program startup"

    assert is_early_operation(RuntimeError(words))
    assert not is_early_operation(RuntimeError("other"))
    assert not is_early_operation(ValueError(words))
