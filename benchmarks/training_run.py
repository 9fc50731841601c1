"""A run of the toy job, wherever it runs: what the benchmarks do to it, and what they see of it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from trainjob.api import API_VERSION, KIND

T = TypeVar("T")
SCRIPT = Path(__file__).parent / "jobs" / "toy.py"
WORKERS = ("worker-0", "worker-1")
EVALUATOR = "evaluator-0"
SETTINGS = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", "OMP_NUM_THREADS": "1"}
CLAIM = "training"
GUARD_SECONDS = 180.0
"""For anything that is waited for; only a hang reaches it."""


@dataclass(frozen=True)
class Toy:
    """The training.

    Attributes:
        steps: in all.
        checkpoint_every: steps between checkpoints.
        seconds_an_example: what an example takes; a step takes 8 of them on each of two workers.
        is_full: whether the model has statistics, dropout and a schedule, which take longer to compile.
        evaluator: whether there is one.
        disk_faults: the share of system calls on the run's files that fail, from 0 to 1.
        disk_seed: chooses which.
        uri: the bucket's folder for the output of jobs; "" for a claim.
        spec: further fields of the job's spec.
    """

    steps: int
    checkpoint_every: int
    seconds_an_example: float
    is_full: bool = True
    evaluator: bool = False
    disk_faults: float = 0.0
    disk_seed: int = 0
    uri: str = ""
    spec: Mapping[str, Any] | None = None

    def variables(self, stamps: str) -> list[dict[str, str]]:
        """Return the environment of its script, which leaves its stamps in that folder."""
        values = {
            "STEPS": self.steps,
            "CHECKPOINT_EVERY": self.checkpoint_every,
            "SECONDS_AN_EXAMPLE": self.seconds_an_example,
            "FULL": int(self.is_full),
            "STAMPS": stamps,
        }
        return [{"name": name, "value": str(value)} for name, value in values.items()]

    def job(self, name: str, pod: Mapping[str, Any]) -> dict[str, Any]:
        """Return a TrainJob of this training; `pod` is the spec of its pods."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": name},
            "spec": {
                "worker": {"replicas": len(WORKERS)},
                "evaluator": {"replicas": int(self.evaluator)},
                "output": {"uri": self.uri} if self.uri else {"claim": {"claimName": CLAIM}},
                "template": {"spec": pod},
                **(self.spec or {}),
            },
        }


class TrainingRun(ABC):
    """One job; a context manager while it is at work. All times are of the clock that the stamps are of."""

    look_seconds: ClassVar[float]
    """Between two looks at what is waited for."""

    @abstractmethod
    def __enter__(self) -> TrainingRun:
        """Start the job."""

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it; nothing of it is left."""

    @abstractmethod
    def stamp(self, replica: str) -> dict[str, Any]:
        """What the replica's training process has said last; nothing before its first word."""

    @abstractmethod
    def clock(self) -> float:
        """Return the time."""

    @abstractmethod
    def send(self, replicas: Sequence[str], number: int) -> float:
        """Send a signal to these training processes; return when the first was sent it."""

    @abstractmethod
    def kill_agent(self, replica: str) -> float:
        """Send SIGKILL to the process that looks after the training process; return when."""

    @abstractmethod
    def delete_pod(self, replica: str) -> float:
        """Have the replica's pod deleted; return when that was asked for."""

    @abstractmethod
    def results(self) -> int:
        """How many results the evaluator has written."""

    @abstractmethod
    def standbys(self) -> Mapping[str, float]:
        """Interpreters that wait for their turn: what each has used of a processor, in seconds."""

    @abstractmethod
    def import_seconds(self, at_once: int) -> float:
        """How long it takes until so many fresh interpreters have TensorFlow and Keras imported."""

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether the job has ended."""

    @abstractmethod
    def tail(self) -> str:
        """The end of what there is to read about the run."""

    def until(self, what: str, look: Callable[[], T | None]) -> T:
        """Return the first true answer; give up when the run has ended."""
        deadline = time.monotonic() + GUARD_SECONDS
        while time.monotonic() < deadline:
            ended = self.is_over
            if found := look():
                return found
            if ended:
                break
            time.sleep(self.look_seconds)
        raise SystemExit(f"{what}: not seen\n{self.tail()}")

    def processes_of(self, replicas: Sequence[str]) -> dict[str, float]:
        """What tells these training processes from later ones: when each has begun."""
        return {replica: self.stamp(replica).get("began", 0.0) for replica in replicas}

    def until_stepping(self, replicas: Sequence[str], after: Mapping[str, float]) -> list[dict[str, Any]]:
        """Return the stamps once each replica has a process later than `after` that has taken a step."""

        def look() -> list[dict[str, Any]] | None:
            stamps = [self.stamp(replica) for replica in replicas]
            new = all(
                s.get("began", 0.0) > after.get(replica, 0.0)
                for replica, s in zip(replicas, stamps, strict=True)
            )
            return stamps if new and all("first_step" in s for s in stamps) else None

        return self.until("a new step of every worker", look)
