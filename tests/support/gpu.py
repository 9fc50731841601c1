"""What the tests of GPUs run, each in processes of its own: Keras alone, a job, and its commands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.ports import free_ports

from support.cli.running import TRAINJOB
from support.pages import PAGES, commands
from support.trainer.plain import clean_environment

SPEED = Path(__file__).parents[1] / "gpu" / "speed.py"
SECONDS = 600.0
_LIST = "import tensorflow as tf; print(*[one.name for one in tf.config.list_physical_devices('GPU')])"


def find_gpus() -> list[str]:
    """The GPUs that TensorFlow sees; raises AssertionError with what to do where there is none."""
    found = subprocess.run([sys.executable, "-c", _LIST], capture_output=True, text=True, check=True)
    assert found.stdout.split(), (
        "TensorFlow sees no GPU on this machine: `make test-gpu` needs an NVIDIA GPU with its driver, and "
        "`trainjob doctor` says what is missing"
    )
    return found.stdout.split()


@dataclass(frozen=True)
class Speed:
    """What `gpu/speed.py` has said, and the whole output."""

    images_per_second: float
    is_compiled: bool
    losses: list[float]
    output: str


def speed_alone(model: str, precision: str, folder: Path) -> Speed:
    """Train by Keras alone."""
    return _spoken(_run([sys.executable, _copy(folder)], folder, model, precision))


def speed_in_a_job(model: str, precision: str, folder: Path, *, gpus: int) -> Speed:
    """Train as a job of one worker."""
    return _spoken(_run(_job(_copy(folder), gpus), folder, model, precision))


def profiled(model: str, folder: Path, *, gpus: int) -> bytes:
    """Return the profile that the line of docs/watching.md records of a job of one worker."""
    (line,) = [one for one in commands(PAGES["docs/watching.md"], "python") if "profiler" in one]
    code, port = shlex.split(line)[2], str(free_ports(1)[0])
    command = [*_job(_copy(folder), gpus), "--base-port", port]
    env = _environment(model, "float32", epochs=1_000_000)
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT) as job,
    ):
        try:
            until = time.monotonic() + SECONDS
            while "training, step" not in (folder / "log").read_text(encoding="utf-8", errors="replace"):
                assert job.poll() is None, (folder / "log").read_text(encoding="utf-8", errors="replace")
                assert time.monotonic() < until, "it doesn't train"
                time.sleep(0.5)
            code = code.replace(":2222", f":{port}").replace("/tmp", str(folder))
            _run([sys.executable, "-c", code], folder, model, "float32")
        finally:
            job.terminate()
            job.wait()
    return b"".join(path.read_bytes() for path in folder.glob("profile/plugins/profile/*/*.xplane.pb"))


def _copy(folder: Path) -> str:
    """Return a script in a folder of its own: a run's output lies beside its script."""
    folder.mkdir(parents=True)
    return str(shutil.copy(SPEED, folder))


def _job(script: str, gpus: int) -> list[str]:
    options = ["--workers", "1", "--gpus", str(gpus), "--no-evaluator", "--plain", "--fresh"]
    return [str(TRAINJOB), "run", script, *options]


def _environment(model: str, precision: str, epochs: int = 4) -> dict[str, str]:
    asked = {"SPEED_MODEL": model, "SPEED_PRECISION": precision, "SPEED_EPOCHS": str(epochs)}
    return {**os.environ, **clean_environment(), **asked}


def _run(command: Sequence[str], folder: Path, model: str, precision: str) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=_environment(model, precision),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _spoken(output: str) -> Speed:
    found = [re.search(f"{name} (.*)", output) for name in ("images/s", "compiled by XLA:", "losses")]
    per_second, compiled, losses = (one.group(1) if one else "" for one in found)
    return Speed(float(per_second), compiled == "True", [float(one) for one in losses.split()], output)
