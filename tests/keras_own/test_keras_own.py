"""Whole files of Keras's own tests, from the installed wheel, run by two workers and beside one process.

A callback's files are worker 0's, so a test that reads one passes there.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.trainer.forms import REFERENCE, Failure, Form, run_group

pytestmark = pytest.mark.nightly

TESTS = Path(__file__).parents[1] / "support" / "trainer" / "keras_tests.py"
STATED = {
    "trainers.trainer_test": {
        "steps_per_epoch_unknown_data_size_not_match": "the data ended within an epoch of steps_per_epoch",
        "py_dataset_multithreading_infinite": "Iterator called after `on_epoch_end`",
    },
    "callbacks.reduce_lr_on_plateau_test": {"cooldown": "object __array__ method not producing an array"},
    "callbacks.swap_ema_weights_test": {"with_tf_distribute": "Could not satisfy device specification"},
}
"""How tests end that aren't passed, by a part of their name; docs/your-script.md gives the reasons."""
CALLBACKS = (
    *("backup_and_restore", "callback", "csv_logger", "early_stopping", "lambda_callback", "tensorboard"),
    *("learning_rate_scheduler", "model_checkpoint", "monitor_callback", "reduce_lr_on_plateau"),
    *("swap_ema_weights", "terminate_on_nan"),
)
MODULES = ("trainers.trainer_test", "trainers.epoch_iterator_test", "models.model_test")


@pytest.mark.parametrize("module", [*MODULES, *(f"callbacks.{name}_test" for name in CALLBACKS)])
def test_whole_file(module: str, tmp_path: Path) -> None:
    listed = subprocess.run(
        [sys.executable, TESTS, f"keras.src.{module}"], check=True, capture_output=True, text=True
    )
    seen = run_group([Form(name, TESTS) for name in listed.stdout.split()], tmp_path)
    failed = {
        name: {replica: one.error for replica, one in sorted(by.items()) if isinstance(one, Failure)}
        for name, by in seen.items()
    }
    # What one process doesn't pass says nothing of two workers.
    found = {name: by for name, by in failed.items() if by and REFERENCE not in by}
    assert not {
        name: by
        for name, by in found.items()
        if "worker-0" in by or not module.startswith("callbacks.")
        if not any(
            part in name and words in by.get("worker-0", "") for part, words in STATED.get(module, {}).items()
        )
    }
