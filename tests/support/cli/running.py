"""`trainjob run` as a person starts it: a process of its own, watched line by line."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from support.trainer.processes import Process
from support.world.jobs import build_job

SCRIPTS = Path(__file__).parents[2] / "multiprocess" / "scripts"
TRAINJOB = Path(sys.executable).parent / "trainjob"


def write_job(
    folder: Path,
    script: Path,
    env: Mapping[str, str] | None = None,
    *,
    arguments: Sequence[str] = (),
    **spec: object,
) -> Path:
    variables = [{"name": name, "value": value} for name, value in (env or {}).items()]
    container = {"command": ["python", str(script)], "args": list(arguments), "env": variables}
    job = build_job(container=container, **spec)
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


@contextlib.contextmanager
def started_run(file: Path, folder: Path, *options: str) -> Iterator[Process]:
    """Start `trainjob run`; output goes below `folder`. It is always ended with the test."""
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "1", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1"}
    with subprocess.Popen(
        [str(TRAINJOB), "run", str(file), "--folder", str(folder), "--plain", *options],
        env={**os.environ, **quiet, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as popen:
        process = Process("trainjob run", popen)
        process.collect()
        try:
            yield process
        finally:
            process.kill()
            popen.wait()
            process.finish_reading()


def finished_run(file: Path, folder: Path, *options: str) -> tuple[int, str]:
    """Run `trainjob run` to its end; return its exit code and output."""
    with started_run(file, folder, *options) as run:
        return run.wait(), run.output


def processes_of(folder: Path) -> dict[int, str]:
    """The command lines of processes whose environment names this folder: what a run has left behind."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if str(folder).encode() in (entry / "environ").read_bytes():
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(entry.name)] = command
        except (OSError, ValueError):
            continue
    return found


def pause(run: Process, folder: Path, seconds: float) -> None:
    """Stop all processes of a run for a while, as a machine does that is moved or sleeps."""
    paused = [run.popen.pid, *processes_of(folder)]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in paused:
            os.kill(pid, number)
        if number == signal.SIGSTOP:
            time.sleep(seconds)
