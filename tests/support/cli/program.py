"""Builders for the command line: job files with small scripts, views, and runs of the program itself."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import yaml

from support.world.jobs import build_job
from trainjob.api import TrainJobStatus
from trainjob.cli import main
from trainjob.client.view import JobView, ReplicaView
from trainjob_trainer.contract.reports import Report

GUARD_SECONDS = 120.0
"""Against hanging only."""

CONTEXT = click.Context(main, **main.context_settings)
"""The parent of every context of a command: click keeps its help option as the first one has it."""

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

LONE: dict[str, Any] = {"workers": 1, "evaluator": False}
BARE: dict[str, Any] = {**LONE, "restartStrategy": "Recreate"}
"""The job that takes least: one process, without an agent."""

# Fast to start; the scripts of the tests use `report(...)` as a training process would.
PREAMBLE = """
import json, os, signal, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
role, index = task["type"], task["index"]
def report(**values):
    path = os.environ["TRAINJOB_PROGRESS_FILE"]
    with open(path + ".tmp", "w") as file:
        json.dump({"time": 0, **values}, file)
    os.replace(path + ".tmp", path)
"""

SUCCEED = """
print("hello from", role, index)
if role == "evaluator":
    metrics = {"accuracy": 0.975, "loss": 0.08125}
    report(state="finished", evaluation={"step": 440, "metrics": metrics, "final": True})
else:
    report(state="finished", step=440, totalSteps=440, checkpointStep=440)
"""


def write_job(folder: Path, script: str = SUCCEED, *, name: str = "job.yaml", **job: Any) -> Path:
    """Write a script and a job that runs it, and return the job's file."""
    (folder / "train.py").write_text(PREAMBLE + script)
    container = {"command": ["python", "-I", "-S", "train.py"], **job.pop("container", {})}
    file = folder / name
    file.write_text(yaml.safe_dump(build_job(container=container, **job)))
    return file


def trainjob(
    *arguments: str, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: PLW1510 - the exit code is what tests look at
        command(arguments),
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=GUARD_SECONDS,
        stdin=subprocess.DEVNULL,
    )


class Running:
    """A run of the program that continues; `lines` are those of both streams together."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._open = b""

    def read_until(self, *texts: str) -> None:
        """Read until each of these is part of some line."""
        assert self.process.stdout is not None
        while missing := [text for text in texts if not any(text in line for line in self.lines)]:
            ready, _, _ = select.select([self.process.stdout], [], [], GUARD_SECONDS)
            data = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            assert data, f"{missing} not seen in {self.lines}"
            *whole, self._open = (self._open + data).split(b"\n")
            self.lines += [line.decode() for line in whole]

    def finish(self) -> int:
        """Read the rest and return the exit code."""
        rest, _ = self.process.communicate(timeout=GUARD_SECONDS)
        self.lines += (self._open + rest).decode().splitlines()
        return self.process.returncode

    def numbers_after(self, word: str) -> list[int]:
        """Return the last word, a number, of each line that has `word` in it."""
        return [int(line.split()[-1]) for line in self.lines if f" {word} " in line]


@contextmanager
def running(*arguments: str, cwd: Path) -> Iterator[Running]:
    """Start the program, and kill it if the test does not end it."""
    with subprocess.Popen(
        command(arguments),
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    ) as process:
        try:
            yield Running(process)
        finally:
            process.kill()


class Screen:
    """The other end of a terminal."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.text = ""

    def read_until(self, *texts: str) -> None:
        """Read until all of these have been written."""
        while not all(text in self._plain for text in texts):
            ready, _, _ = select.select([self._fd], [], [], GUARD_SECONDS)
            assert ready, f"{texts} not seen in {self.text}"
            self.text += os.read(self._fd, 65536).decode(errors="replace")

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def numbers_after(self, word: str) -> list[int]:
        """Return each number that follows the word, once."""
        return sorted({int(number) for number in re.findall(rf"{word} (\d+)", self._plain)})

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def _plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self.text)


@contextmanager
def terminal(*arguments: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[bytes], Screen]]:
    """Start the program on a terminal of its own, and kill it if the test does not end it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    # The first program makes it the controlling terminal, and is then replaced by ours.
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_TERMINAL, *command(arguments)],
        cwd=cwd,
        env={**os.environ, "TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    screen = Screen(ours)
    try:
        yield process, screen
    finally:
        screen.close()
        process.kill()
        process.wait()


_ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def build_run(replicas: Sequence[ReplicaView] = (), *, seconds: float = 65, **fields: Any) -> JobView:
    """Return the job `digits` of a run here; `fields` of the status are those of its JSON."""
    own = {key: fields.pop(key) for key in ("evaluation", "checkpoint_step", "events") if key in fields}
    return JobView(
        name="digits",
        spec={"evaluator": {"replicas": sum(replica.is_evaluator for replica in replicas)}},
        status=TrainJobStatus.model_validate({"state": "Running", **fields}),
        elapsed=timedelta(seconds=seconds),
        replicas=tuple(replicas),
        **own,
    )


def build_replica(name: str = "worker-0", state: str = "training", **fields: Any) -> ReplicaView:
    """Return a replica; fields that it has not are those of its report."""
    own = {key: fields.pop(key) for key in ("exit_code", "message") if key in fields}
    pod = fields.pop("pod", f"digits-{name}-aaaaaaaa")
    return ReplicaView(name, state, Report(**fields), pod, **own)


def condition(kind: str, reason: str, message: str) -> dict[str, str]:
    return {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }


def command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-c", _PROGRAM, *arguments]


# Under `nohup` SIGHUP is ignored, and what is ignored is inherited; here it is to be heard in any case.
_PROGRAM = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from trainjob.cli import main
main(prog_name="trainjob")
"""
