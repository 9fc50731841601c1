from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from trainjob_trainer.distribution import early_operation
from trainjob_trainer.distribution.early_operation import explain_early_operation, is_early_operation

SCRIPTS = [
    ("import tensorflow as tf\nprint('x')\nx = tf.constant(1)\n", ":3: x = tf.constant(1)"),
    (
        "import tensorflow as tf\ntf.config.set_soft_device_placement(True)\n"
        "def f():\n    return tf.zeros(1)\nfor i in range(2):\n    tf.zeros(i)\n",
        ":6: tf.zeros(i)",
    ),
    ("import tensorflow\ny = [tensorflow.ones(2)]\n", ":2: y = [tensorflow.ones(2)]"),
    ("import numpy\nnumpy.ones(1)\n", "in a module imported before"),
    ("this is no Python", "in a module imported before"),
]


@pytest.mark.parametrize(("source", "words"), SCRIPTS)
def test_the_likely_line_is_found_in_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str
) -> None:
    monkeypatch.setattr(early_operation, "_first", [])  # other tests of this process ran operations
    script = tmp_path / "train.py"
    script.write_text(source)

    assert words in str(explain_early_operation(script=script))


def test_the_line_that_was_seen_is_named() -> None:
    frame = traceback.FrameSummary("/app/train.py", 12, "main", line="tf.zeros(3)")

    assert "/app/train.py:12: tf.zeros(3)" in str(explain_early_operation(first=frame))


def test_only_tensorflows_own_complaint_counts() -> None:
    words = "Collective ops must be configured at program startup"

    assert is_early_operation(RuntimeError(words))
    assert not is_early_operation(RuntimeError("other"))
    assert not is_early_operation(ValueError(words))
