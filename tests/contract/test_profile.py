"""What the command line asks for a profile is what the trainer understands, and the other way round."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from support.world.virtual_time import run_skipping_time
from trainjob.client import profile_requests
from trainjob.client.problems import ClusterProblem, TimeIsOver
from trainjob.client.profile import NO_ANSWER_SECONDS, LocalProfileClient, ProfileRequest, ReplicaUnavailable
from trainjob_trainer import Environment, Task
from trainjob_trainer.reporting.profiler import Profiler


class NoTrace:
    def start(self, folder: Path) -> None: ...

    def stop(self, *, save: bool) -> None: ...

    def mark(self, step: int) -> Any:
        return contextlib.nullcontext(step)


class Job:
    """A training that takes ten steps while the command waits a second; it is the client, too."""

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

    async def answer(self) -> Any:
        while self.seconds + 1 <= asyncio.get_running_loop().time():
            self.train()
        if self.away:
            raise ReplicaUnavailable("it has no pod now")
        return await self.local.answer()

    async def why_over(self) -> str | None:
        return "digits is over: Complete" if self.done >= self.total else None

    def train(self) -> None:
        """Train for a second."""
        self.seconds += 1
        if self.is_deaf:
            return
        if self.done < self.total:
            self.profiler.between_calls(self.done, 10)
            self.done += 10
            if self.done >= self.total:
                self.profiler.finish(self.done)

    def run(self, timeout: float | None = None, **request: Any) -> Any:
        wanted = ProfileRequest(self, "worker 0", self.said.append)
        return run_skipping_time(wanted.run({"id": "x", **request}, timeout))


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
        job.train()
    with pytest.raises(ClusterProblem, match=words):
        job.run(**request_)
    assert not list((tmp_path / "profile").iterdir())


def test_a_request_without_an_answer(tmp_path: Path) -> None:
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


def test_another_request_comes_meanwhile(tmp_path: Path) -> None:
    job = Job(tmp_path)
    asked: list[bool] = []
    train = job.train

    def interfere() -> None:
        if job.done == 50 and not asked:
            asked.append(True)
            profile_requests.ask(tmp_path / "profile", "worker-0", '{"id": "y", "first": 200, "last": 210}')
        train()

    job.train = interfere  # type: ignore[method-assign]
    with pytest.raises(ClusterProblem, match="received another request"):
        job.run(first=500, last=510)


def test_a_pod_that_is_replaced_is_waited_for(tmp_path: Path) -> None:
    job = Job(tmp_path)
    train = job.train

    def replace() -> None:
        job.away = 20 <= job.done < 50
        train()

    job.train = replace  # type: ignore[method-assign]
    assert job.run(first=101, last=110)["last"] == 110
    assert "worker 0: it has no pod now; trying again" in job.said
