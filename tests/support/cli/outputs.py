"""A job whose output is a folder of the test, in a cluster and as a run here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.cli.server import CliServer
from support.cli.stored_jobs import RUNNING, store_run, stored_job

STARTED = {"startTime": "2026-01-02T03:04:05Z"}
READING = {"phase": "Running", "containerStatuses": [{"name": "reader", "state": RUNNING}]}
EVENTS = bytes.fromhex(
    "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a"
    "1a00000000000000129bd82d09000000000000004010282a0d0a0b0a046c6f7373150000003f189f406f"
)
"""A file for TensorBoard: the version's record, and one with `loss` 0.5 at step 40."""

FILES = {
    "model/model.keras": b"weights" * 10_000,
    "model/recipe.json": b"{}",
    "checkpoints/step-40/part": b"part",
    "logs/history.jsonl": b'{"step": 40, "metrics": {"loss": 0.5}}\n',
    "evaluator/evaluations.jsonl": b'{"step": 40, "metrics": {"loss": 0.6}}\n',
    "evaluator/logs/events.out.tfevents.1.host": b"scores",
    "logs/train/events.out.tfevents.1.host": EVENTS,
    "result.json": b'{"accuracy": 0.9}',
}


def write_output(folder: Path, files: dict[str, bytes] = FILES) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


class ReaderPod:
    """What runs in the pod: the program, on the test's folder instead of the mounted one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[Sequence[str]] = []

    def __call__(self, command: Sequence[str]) -> tuple[int | str | None, str | bytes, str]:
        self.commands.append(command)
        assert command[1:4] == ["-I", "-S", "-c"]
        assert command[5] == "/output/digits"
        words = [sys.executable, *command[1:5], str(self.folder), command[6]]
        done = subprocess.run(words, capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr.decode()


def store_job_with_output(api: CliServer, folder: Path, state: str = "Complete", **status: Any) -> ReaderPod:
    api.put(stored_job(state, **{**STARTED, **status}))
    api.pod_status = READING
    pod = api.program = ReaderPod(folder)
    return pod


def store_run_with_output(folder: Path) -> Path:
    return store_run(write_output(folder))
