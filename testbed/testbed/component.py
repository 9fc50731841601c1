"""A program of the cluster: what is run, and where its output goes."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from testbed.debian import search_path
from testbed.errors import TestbedError
from testbed.process import Process


@dataclass(frozen=True)
class Component:
    """What is run. Its name is its log's and its process file's, too."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


class Runner(Protocol):
    """Starts components of one cluster, and knows which of them live."""

    folder: Path

    def start(self, component: Component) -> Process:
        """Starts it; returns at once."""
        ...


class Plain:
    """Runs components as ordinary processes of this machine.

    Every process is written down before anything else happens, so that the next run can end it.
    """

    def __init__(self, folder: Path, *, die_with_us: bool) -> None:
        """Keeps logs and process files in `folder`; with `die_with_us` components end with this process."""
        self.folder = folder
        self._prefix = ("setpriv", "--pdeathsig", "KILL", "--") if die_with_us else ()
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        (folder / "processes").mkdir(exist_ok=True)

    def start(self, component: Component) -> Process:
        """Starts it in a session of its own, so that Ctrl-C in a terminal doesn't reach it."""
        with log_file(self.folder, component.name).open("ab") as log:
            child = subprocess.Popen(
                (*self._prefix, *component.argv),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PATH": search_path(), **component.env},
            )  # fmt: skip
        process = Process.of(child.pid)
        process.write(process_file(self.folder, component.name))
        child.returncode = 0  # Popen, leave it alone: it is ours to wait for, or outlives us
        return process


def process_file(folder: Path, name: str) -> Path:
    """Where a component's process is written down."""
    return folder / "processes" / f"{name}.json"


def log_file(folder: Path, name: str) -> Path:
    """Where a component's output goes."""
    return folder / "logs" / f"{name}.log"


def processes(folder: Path) -> dict[str, Process]:
    """The processes that were started for a cluster, living or dead, the latest last."""
    files = sorted((folder / "processes").glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    found = {file.stem: Process.read(file) for file in files}
    return {name: process for name, process in found.items() if process}


def check_alive(folder: Path, process: Process, name: str) -> None:
    """Raises a TestbedError with the end of its log if a component is dead."""
    if not process.alive:
        raise ended(folder, name)


def ended(folder: Path, name: str) -> TestbedError:
    """What to raise for a component that should live and doesn't: the end of its log tells more."""
    lines = log_file(folder, name).read_text(errors="replace").splitlines()[-15:]
    return TestbedError(f"{name} has ended; its last lines:\n" + "\n".join(lines))
