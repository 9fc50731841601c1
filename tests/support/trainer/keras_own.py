"""Keras's own tests, from the installed wheel, run by two workers and beside one process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.trainer.forms import REFERENCE, Failure, Form, run_group

TESTS = Path(__file__).with_name("keras_tests.py")


def names_in(module: str) -> list[str]:
    """The tests of one of Keras's modules that it runs on TensorFlow."""
    printed = subprocess.run([sys.executable, TESTS, module], check=True, capture_output=True, text=True)
    return printed.stdout.split()


def unlike_one_process(names: Sequence[str], root: Path) -> dict[str, dict[str, str]]:
    """Of each test that passes in one process and not on each worker: what the workers say."""
    seen = run_group([Form(name, TESTS) for name in names], root)
    failed = {
        name: {replica: one.error for replica, one in sorted(by.items()) if isinstance(one, Failure)}
        for name, by in seen.items()
    }
    return {name: by for name, by in failed.items() if by and REFERENCE not in by}
