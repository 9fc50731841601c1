"""What the command line asks for a profile is what the trainer understands, and the other way round."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from trainjob.cli.cluster.errors import ClusterProblem, TimeIsOver
from trainjob.cli.cluster.following import RetryTimes
from trainjob.cli.profiling.asking import (
    NO_ANSWER_SECONDS,
    LocalProfileClient,
    ProfileRequest,
    ReplicaUnavailable,
)
from trainjob_trainer import Environment, Task
from trainjob_trainer.reporting.profiler import Profiler


class NoTrace:
    def start(self, folder: Path) -> None: ...

    def stop(self, *, save: bool) -> None: ...

    def mark(self, step: int) -> Any:
        return contextlib.nullcontext(step)


class Job:
    """A training that takes ten steps while the command waits a second; it is both the desk and the clock."""

    def __init__(self, output: Path, total: int = 1000) -> None:
        task = Task("worker", 0, {})
        environment = Environment("digits", "", 1, output, output / "checkpoints", output / "logs/train")
        self.seconds = 0.0
        self.profiler = Profiler(task, environment, total, trace=NoTrace(), clock=lambda: self.seconds)
        self.local = LocalProfileClient(output, "worker-0")
        self.total, self.done, self.away = total, 0, False
        self.said: list[str] = []
        self.ask, self.withdraw = self.local.ask, self.local.withdraw
        self.is_deaf = False

    def answer(self) -> Any:
        if self.away:
            raise ReplicaUnavailable("it has no pod now")
        return self.local.answer()

    def why_over(self) -> str | None:
        return "digits is over: Complete" if self.done >= self.total else None

    def pause(self, seconds: float) -> None:
        self.seconds += seconds
        if self.is_deaf:
            return
        if self.done < self.total:
            self.profiler.between_calls(self.done, 10)
            self.done += 10
            if self.done >= self.total:
                self.profiler.finish(self.done)

    def run(self, timeout: float | None = None, **request: Any) -> Any:
        pace = RetryTimes(lambda: self.seconds, self.pause).within(timeout)
        return ProfileRequest(self, "worker 0", self.said.append, pace).run({"id": "x", **request})


def test_a_profile_from_beginning_to_end(tmp_path: Path) -> None:
    job = Job(tmp_path)
    answer = job.run(first=501, last=520)
    assert (answer["first"], answer["last"]) == (501, 520)
    assert answer["folder"] == str(tmp_path / "logs/train")
    assert job.said == [
        "worker 0: waiting for the step; 0 are done",
        "worker 0: waiting for the step; 300 are done",
        "worker 0: recording from step 501 on",
    ]
    assert not list((tmp_path / "profile").iterdir())


def test_the_next_steps(tmp_path: Path) -> None:
    assert Job(tmp_path).run(count=20)["last"] == 20


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"first": 1001, "last": 1002}, "worker 0: training ends with step 1000"),
        ({"first": 1, "last": 30}, "worker 0: steps 1-30 are over: 50 steps are done"),
    ],
)
def test_what_the_trainer_refuses(request_: dict[str, int], words: str, tmp_path: Path) -> None:
    job = Job(tmp_path)
    for _ in range(5):
        job.pause(1.0)
    with pytest.raises(ClusterProblem, match=words):
        job.run(**request_)
    assert not list((tmp_path / "profile").iterdir())


def test_nobody_answers(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.is_deaf = True
    with pytest.raises(ClusterProblem, match="worker 0 has not answered for 60 s"):
        job.run(count=20)
    assert NO_ANSWER_SECONDS <= job.seconds < NO_ANSWER_SECONDS + 5


def test_the_time_is_over(tmp_path: Path) -> None:
    with pytest.raises(TimeIsOver, match=r"waiting for the step; \d+ are done: given up by --timeout"):
        Job(tmp_path).run(timeout=12, first=900, last=910)


def test_the_job_ends_meanwhile(tmp_path: Path) -> None:
    job = Job(tmp_path, total=50)
    job.is_deaf, job.done = True, 50
    with pytest.raises(ClusterProblem, match="digits is over: Complete"):
        job.run(count=20)


def test_somebody_else_asks_meanwhile(tmp_path: Path) -> None:
    job = Job(tmp_path)
    asked: list[bool] = []
    pause = job.pause

    def interfere(seconds: float) -> None:
        if job.done == 50 and not asked:
            asked.append(True)
            job.local.ask({"id": "y", "first": 200, "last": 210})
        pause(seconds)

    job.pause = interfere  # type: ignore[method-assign]
    with pytest.raises(ClusterProblem, match="asked by somebody else"):
        job.run(first=500, last=510)


def test_a_pod_that_is_replaced_is_waited_for(tmp_path: Path) -> None:
    job = Job(tmp_path)
    pause = job.pause

    def replace(seconds: float) -> None:
        job.away = 20 <= job.done < 50
        pause(seconds)

    job.pause = replace  # type: ignore[method-assign]
    assert job.run(first=101, last=110)["last"] == 110
    assert "worker 0: it has no pod now; trying again" in job.said
