"""The oldest TensorFlow and Keras that the package declares train too; all other tests have the newest."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-oldest" / "bin" / "python"
EXTRAS = (ROOT / "trainer" / "pyproject.toml").read_text()
TESTS = (
    "tests/trainer/test_private_names.py",
    "tests/trainer/test_steps.py",
    "tests/trainer_plain/test_keras_repair.py",
    "tests/trainer_plain/test_flipped_bit.py",
    "tests/multiprocess/test_library.py::test_two_workers_equal_one",
)
GUARD_SECONDS = 900


def run(*arguments: str) -> str:
    assert PYTHON.exists(), "`make .venv-oldest/.synced` makes the environment with the oldest versions"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    if "TESTED" in env:
        env["TESTED"] += ", the oldest"
    command = [str(PYTHON), *arguments]
    done = subprocess.run(  # noqa: PLW1510 - the exit code is looked at
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=GUARD_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def bounds(package: str) -> tuple[str, str]:
    """The oldest release and the first one that is not supported."""
    ((oldest, beyond),) = set(re.findall(rf'"{package}>=([\d.]+),<([\d.]+)', EXTRAS))
    return oldest, beyond


def test_they_are_the_lower_ends_of_what_is_declared() -> None:
    code = (
        "import importlib.metadata as m;"
        "found = {one.name.partition('-')[0].partition('_')[0]: one.version for one in m.distributions()"
        " if one.name.replace('_', '-') in ('tensorflow', 'tensorflow-cpu', 'keras')};"
        "print(found['tensorflow'], found['keras'])"
    )
    tensorflow, keras = run("-c", code).split()
    assert tensorflow.startswith(bounds("tensorflow-cpu")[0] + ".")
    assert keras.startswith(bounds("keras")[0] + ".")


def test_they_train() -> None:
    run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *TESTS)
