"""One job on this machine through `trainjob run`, whose processes can be found, killed and waited for."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from training_run import CLAIM, EVALUATOR, SCRIPT, SETTINGS, WORKERS, Toy, TrainingRun

TRAINJOB = Path(sys.executable).parent / "trainjob"


class LocalRun(TrainingRun):
    """A run in a folder of its own; a context manager that leaves no process behind."""

    look_seconds = 0.005

    def __init__(self, toy: Toy, folder: Path) -> None:
        """Start nothing yet; `folder` takes the output, the log and the stamps."""
        self.name = f"toy-{secrets.token_hex(4)}"
        self.uri = toy.uri and f"{toy.uri}/{self.name}"
        # Of a bucket, what isn't a checkpoint is also there.
        self.output = folder / "volumes" / ("output" if toy.uri else CLAIM) / self.name
        self.log, self.faults = folder / "log", folder / "faults"
        self._folder = folder
        self._stamps = folder / "stamps"
        self._evaluator = self.output / "evaluator"
        self._toy = toy
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LocalRun:
        """Start it."""
        self._stamps.mkdir(parents=True)
        file = self._folder / "job.json"
        file.write_text(json.dumps(self._job()))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(TRAINJOB), "run", str(file), "--folder", str(self._folder / "volumes"), "--plain"],
                env={**os.environ, **SETTINGS, **self._faults()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        if self._toy.disk_faults:
            self.until("the run's record", (self.output / ".trainjob.json").exists)
            self.faults.touch()  # they begin
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, and kill what is left of it."""
        process = self._started()
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        process.kill()
        process.wait()
        for pid in self.processes():
            kill(pid)

    def stamp(self, replica: str) -> dict[str, Any]:
        """Read it from the file."""
        folder = self._evaluator if replica == EVALUATOR else self._stamps
        try:
            text = (folder / f"{replica}.json").read_text()
        except FileNotFoundError:
            return {}
        told: dict[str, Any] = json.loads(text)
        return told

    def clock(self) -> float:
        """This machine's."""
        return time.time()

    def send(self, replicas: Sequence[str], number: int) -> float:
        """Found by their stamps."""
        return self._strike([self.pid(replica) for replica in replicas], number)

    def kill_agent(self, replica: str) -> float:
        """Found as the parent of the training process."""
        return self._strike([self.agent(replica)], signal.SIGKILL)

    def delete_pod(self, replica: str) -> float:
        """There is none here."""
        raise NotImplementedError("there are no pods on this machine")

    def results(self) -> int:
        """Read from the output."""
        try:
            return len((self._evaluator / "evaluations.jsonl").read_bytes().splitlines())
        except FileNotFoundError:
            return 0

    def standbys(self) -> Mapping[str, float]:
        """By process."""
        training = {self.pid(replica) for replica in (*WORKERS, EVALUATOR)}
        waiting = set(self.processes()) - training
        # One that has had its turn keeps the mark.
        marked = [pid for pid in waiting if b"\0TRAINJOB_STANDBY=1\0" in _environment(pid)]
        return {str(pid): _cpu_seconds(pid) for pid in marked}

    def import_seconds(self, at_once: int) -> float:
        """With this machine's Python."""
        begin = time.perf_counter()
        command = [sys.executable, "-c", "import tensorflow, keras"]
        started = [subprocess.Popen(command, env={**os.environ, **SETTINGS}) for _ in range(at_once)]
        if any(process.wait() for process in started):
            raise SystemExit("TensorFlow and Keras can't be imported")
        return round(time.perf_counter() - begin, 2)

    def pid(self, replica: str) -> int:
        """The replica's training process, if it is this run's and lives; else 0."""
        pid = int(self.stamp(replica).get("pid", 0))
        return pid if pid and self._is_mine(pid) else 0

    def agent(self, replica: str) -> int:
        """The process above the training process, which looks after it."""
        pid = self.pid(replica)
        parent = int(_stat(pid)[1]) if pid else 0
        return parent if parent and self._is_mine(parent) else 0

    def processes(self) -> list[int]:
        """All processes with this run's name in their environment."""
        return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if self._is_mine(int(entry.name))]

    def wait(self, seconds: float) -> int:
        """Wait for the job's end; return the exit code of `trainjob run`."""
        try:
            return self._started().wait(seconds)
        except subprocess.TimeoutExpired:
            raise SystemExit(f"the job did not end within {seconds} s\n{self.tail()}") from None

    @property
    def is_over(self) -> bool:
        """Whether `trainjob run` has ended."""
        return self._started().poll() is not None

    def tail(self) -> str:
        """The last lines that `trainjob run` printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])

    def _strike(self, pids: Sequence[int], number: int) -> float:
        if not all(pids):
            raise SystemExit(f"nobody to kill\n{self.tail()}")
        begin = time.time()
        for pid in pids:
            kill(pid, number)
        return begin

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("not started")
        return self._process

    def _is_mine(self, pid: int) -> bool:
        return f"\0TRAINJOB_NAME={self.name}\0".encode() in _environment(pid)

    def _faults(self) -> dict[str, str]:
        """Return the variables by which every process of the run has a disk that fails, once it has begun."""
        if not self._toy.disk_faults:
            return {}
        library, source = self._folder / "faulty_disk.so", Path(__file__).with_name("faulty_disk.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"], check=True)
        volumes = (self._folder / "volumes").resolve()
        return {
            "LD_PRELOAD": str(library.resolve()),
            "DISK_FAULTS": f"{self._toy.disk_faults} {self._toy.disk_seed} {volumes}",
            "DISK_FAULTS_LOG": str(self.faults.resolve()),
        }

    def _job(self) -> dict[str, Any]:
        container = {
            "name": "trainer",
            "image": "example.com/none:1",
            "command": ["python", str(SCRIPT)],
            "env": self._toy.variables(str(self._stamps.resolve())),
        }
        return self._toy.job(self.name, {"containers": [container]})


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _cpu_seconds(pid: int) -> float:
    return sum(int(field) for field in _stat(pid)[11:13]) / os.sysconf("SC_CLK_TCK")


def _environment(pid: int) -> bytes:
    try:
        return b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _stat(pid: int) -> Sequence[str]:
    """The fields after the command's name: the state, the parent, ...; zeros for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 50
