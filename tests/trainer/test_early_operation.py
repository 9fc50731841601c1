from __future__ import annotations

import traceback

import pytest

from trainjob_trainer import InvalidConfiguration, PortInUse, Task
from trainjob_trainer.distribution import early_operation
from trainjob_trainer.distribution.early_operation import explain_early_operation, explained


def test_a_line_that_was_not_seen_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_operation, "_first", [])  # other tests of this process ran operations

    assert "was built: before the trainer was imported. Workers" in str(explain_early_operation())


def test_the_line_that_was_seen_is_named() -> None:
    frame = traceback.FrameSummary("/app/train.py", 12, "main", line="tf.zeros(3)")

    assert "/app/train.py:12: tf.zeros(3)" in str(explain_early_operation(frame))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("Collective ops must be configured at program startup"), InvalidConfiguration),
        (RuntimeError("other"), RuntimeError),
        (ValueError("Collective ops must be configured at program startup"), ValueError),
        (OSError("Could not start gRPC server"), PortInUse),
    ],
)
def test_only_tensorflows_own_complaint_counts(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind) as raised, explained(Task("worker", 0, {"worker": ("a:1",)})):
        raise error
    assert type(raised.value) is kind
