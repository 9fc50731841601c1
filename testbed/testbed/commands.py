"""Runs other programs, and shows what they said when they fail."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.errors import TestbedError


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float | None = None,
) -> str:
    """Runs a program to its end and returns its stdout.

    Args:
        argv: The program and its arguments.
        stdin: What it reads; nothing by default.
        env: Variables on top of this process's own.
        cwd: The folder that it runs in.
        timeout: Seconds after which it is killed.

    Raises:
        TestbedError: It can't be run, ran too long, or its exit status is not 0.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words, input=stdin or "", env={**os.environ, **(env or {})}, cwd=cwd, timeout=timeout,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TestbedError(f"{' '.join(words)}: {error}") from error
    if done.returncode != 0:
        said = (done.stderr + done.stdout).strip()
        raise TestbedError(f"{' '.join(words)} ended with status {done.returncode}:\n{said[-4000:]}")
    return done.stdout


def succeeds(argv: Sequence[str | Path], *, timeout: float = 30) -> bool:
    """Whether a program can be run and ends with status 0."""
    try:
        run(argv, timeout=timeout)
    except TestbedError:
        return False
    return True
