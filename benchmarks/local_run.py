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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
TRAINJOB = Path(sys.executable).parent / "trainjob"
SCRIPT = Path(__file__).parent / "jobs" / "toy.py"
WORKERS = ("worker-0", "worker-1")
EVALUATOR = "evaluator-0"
SETTINGS = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}
GUARD_SECONDS = 180.0
"""For anything that is waited for; only a hang reaches it."""
_LOOK_SECONDS = 0.005


@dataclass(frozen=True)
class Toy:
    """The training.

    Attributes:
        steps: in all.
        checkpoint_every: steps between checkpoints.
        seconds_an_example: what an example takes; a step takes 8 of them on each of two workers.
        is_full: whether the model has statistics, dropout and a schedule, which take longer to compile.
        evaluator: whether there is one.
        spec: further fields of the job's spec.
    """

    steps: int
    checkpoint_every: int
    seconds_an_example: float
    is_full: bool = True
    evaluator: bool = False
    spec: Mapping[str, Any] | None = None


class LocalRun:
    """A run in a folder of its own; a context manager that leaves no process behind."""

    def __init__(self, toy: Toy, folder: Path) -> None:
        """Start nothing yet; `folder` takes the output, the log and the stamps."""
        self.name = f"toy-{secrets.token_hex(4)}"
        self.output = folder / "volumes" / "training" / self.name
        self.log = folder / "log"
        self._folder = folder
        self._stamps = folder / "stamps"
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
                env={**os.environ, **SETTINGS},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
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

    def stamp(self, seat: str) -> dict[str, Any]:
        """What the seat's training process has said last; nothing before its first word."""
        try:
            text = (self._stamps / f"{seat}.json").read_text()
        except FileNotFoundError:
            return {}
        told: dict[str, Any] = json.loads(text)
        return told

    def pid(self, seat: str) -> int:
        """The seat's training process, if it is this run's and lives; else 0."""
        pid = int(self.stamp(seat).get("pid", 0))
        return pid if pid and self._is_mine(pid) else 0

    def agent(self, seat: str) -> int:
        """The process above the training process, which looks after it."""
        pid = self.pid(seat)
        parent = int(_stat(pid)[1]) if pid else 0
        return parent if parent and self._is_mine(parent) else 0

    def processes(self) -> list[int]:
        """All processes with this run's name in their environment."""
        return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if self._is_mine(int(entry.name))]

    def standbys(self) -> list[int]:
        """Interpreters that wait for their turn; one that has had it keeps the mark."""
        training = {self.pid(seat) for seat in (*WORKERS, EVALUATOR)}
        waiting = set(self.processes()) - training
        return [pid for pid in waiting if b"\0TRAINJOB_STANDBY=1\0" in _environment(pid)]

    def until(self, what: str, look: Callable[[], T | None]) -> T:
        """Return the first true answer; give up when the run has ended."""
        deadline = time.monotonic() + GUARD_SECONDS
        while time.monotonic() < deadline:
            ended = self._started().poll() is not None
            if found := look():
                return found
            if ended:
                break
            time.sleep(_LOOK_SECONDS)
        raise SystemExit(f"{what}: not seen\n{self.tail()}")

    def until_stepping(self, seats: Sequence[str], after: Mapping[str, int]) -> list[dict[str, Any]]:
        """Return the stamps once each seat has a process other than `after` that has taken a step."""

        def look() -> list[dict[str, Any]] | None:
            stamps = [self.stamp(seat) for seat in seats]
            new = all(s.get("pid") != after.get(seat) for seat, s in zip(seats, stamps, strict=True))
            return stamps if new and all("first_step" in s for s in stamps) else None

        return self.until("a new step of every worker", look)

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

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("not started")
        return self._process

    def _is_mine(self, pid: int) -> bool:
        return f"\0TRAINJOB_NAME={self.name}\0".encode() in _environment(pid)

    def _job(self) -> dict[str, Any]:
        toy = self._toy
        variables = {
            "STEPS": toy.steps,
            "CHECKPOINT_EVERY": toy.checkpoint_every,
            "SECONDS_AN_EXAMPLE": toy.seconds_an_example,
            "FULL": int(toy.is_full),
            "STAMPS": self._stamps.resolve(),
        }
        container = {
            "name": "trainer",
            "image": "example.com/none:1",
            "command": ["python", str(SCRIPT)],
            "env": [{"name": name, "value": str(value)} for name, value in variables.items()],
        }
        return {
            "apiVersion": "trainjob.dev/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": self.name},
            "spec": {
                "worker": {"replicas": len(WORKERS)},
                "evaluator": {"replicas": int(toy.evaluator)},
                "output": {"claim": {"claimName": "training"}},
                "template": {"spec": {"containers": [container]}},
                **(toy.spec or {}),
            },
        }


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def cpu_seconds(pids: Sequence[int]) -> float:
    """What the processes have used so far."""
    ticks = [sum(int(field) for field in _stat(pid)[11:13]) for pid in pids]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def import_seconds(at_once: int) -> float:
    """How long it takes until so many fresh interpreters have TensorFlow and Keras imported."""
    begin = time.perf_counter()
    started = [
        subprocess.Popen([sys.executable, "-c", "import tensorflow, keras"], env={**os.environ, **SETTINGS})
        for _ in range(at_once)
    ]
    if any(process.wait() for process in started):
        raise SystemExit("TensorFlow and Keras can't be imported")
    return round(time.perf_counter() - begin, 2)


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
