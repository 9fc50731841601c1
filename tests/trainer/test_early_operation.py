from __future__ import annotations

import traceback

import pytest

from trainjob_trainer.distribution import early_operation
from trainjob_trainer.distribution.early_operation import explain_early_operation, is_early_operation

SEEN = traceback.FrameSummary("/app/train.py", 12, "main", line="tf.zeros(3)")


@pytest.mark.parametrize(
    ("first", "words"),
    [([SEEN], "built: /app/train.py:12: tf.zeros(3)"), ([], "built: in a module imported before")],
)
def test_the_line_that_was_seen_is_named(
    monkeypatch: pytest.MonkeyPatch, first: list[traceback.FrameSummary], words: str
) -> None:
    monkeypatch.setattr(early_operation, "_first", first)

    assert words in str(explain_early_operation())


def test_only_tensorflows_own_complaint_counts() -> None:
    words = "Collective ops must be configured at program startup"

    assert is_early_operation(RuntimeError(words))
    assert not is_early_operation(RuntimeError("other"))
    assert not is_early_operation(ValueError(words))
