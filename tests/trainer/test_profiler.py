"""When a running training is recorded, and what the one who asked is told."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from trainjob_trainer import Environment, Task
from trainjob_trainer.reporting.profiler import MOST_MEGABYTES, MOST_SECONDS, Profiler, Trace

TWO = {"worker": ("a:1", "b:1")}


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class FakeTrace:
    def __init__(self) -> None:
        self.folders: list[Path] = []
        self.saved: list[bool] = []
        self.fails = ""

    def start(self, folder: Path) -> None:
        if self.fails == "start":
            raise RuntimeError("Another profiler is running.\nmore")
        self.folders.append(folder)

    def stop(self, *, save: bool) -> None:
        self.saved.append(save)
        if self.fails == "stop":
            raise RuntimeError("No space left on device")

    def mark(self, step: int) -> Any:
        return contextlib.nullcontext(step)


class World:
    """A replica that takes calls of ten steps, half a second each; some memory grows with each."""

    def __init__(self, output: Path, index: int = 0, total: int | None = None) -> None:
        self.clock = Clock()
        self.trace = FakeTrace()
        self.folder = output / "profile"
        self.folder.mkdir(exist_ok=True)
        self.request = self.folder / f"worker-{index}.json"
        task = Task("worker", index, TWO)
        environment = Environment("digits", "", 1, output, output / "checkpoints", output / "logs" / "train")
        self.memory = self.growth = 0
        self.profiler = Profiler(
            task, environment, total, trace=self.trace, clock=self.clock, memory=lambda: self.memory
        )
        self.done = 0

    def ask(self, **request: Any) -> None:
        self.request.write_text(json.dumps({"id": "x", **request}))

    def run(self, until: int) -> list[tuple[str, int]]:
        """Take calls; return each answer with the steps that were done when it came first."""
        told: list[tuple[str, int]] = []
        while self.done < until:
            self.profiler.between_calls(self.done, 10)
            state = self.answer.get("state")
            if state and (not told or told[-1][0] != state):
                told.append((state, self.done))
            self.done += 10
            self.clock.seconds += 0.5
            self.memory += self.growth
        return told

    @property
    def answer(self) -> dict[str, Any]:
        path = self.request.with_suffix(".answer.json")
        return json.loads(path.read_text()) if path.exists() else {}


@pytest.mark.parametrize(
    ("request_", "told", "steps"),
    [
        ({"first": 101, "last": 110}, [("waiting", 0), ("profiling", 100), ("written", 110)], (101, 110)),
        ({"first": 105, "last": 112}, [("waiting", 0), ("profiling", 100), ("written", 120)], (101, 120)),
        ({"first": 110, "last": 111}, [("waiting", 0), ("profiling", 100), ("written", 120)], (101, 120)),
        ({"first": 1, "last": 1}, [("profiling", 0), ("written", 10)], (1, 10)),
        ({"count": 15}, [("profiling", 0), ("written", 20)], (1, 20)),
    ],
)
def test_whole_calls_are_recorded(
    request_: dict[str, int], told: list[tuple[str, int]], steps: tuple[int, int], tmp_path: Path
) -> None:
    world = World(tmp_path)
    world.ask(**request_)
    assert world.run(until=200) == told
    answer = world.answer
    assert (answer["id"], answer["first"], answer["last"]) == ("x", *steps)
    assert answer["folder"] == str(tmp_path / "logs" / "train")
    assert "message" not in answer
    assert (world.trace.folders, world.trace.saved) == ([tmp_path / "logs" / "train"], [True])
    assert not world.request.exists()


def test_other_workers_have_a_folder_of_their_own(tmp_path: Path) -> None:
    world = World(tmp_path, index=1)
    world.ask(count=1)
    world.run(until=50)
    assert world.trace.folders == [tmp_path / "logs" / "worker-1"]


def test_a_record_ends_in_time_for_a_browser(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.ask(first=1, last=10**6)
    world.run(until=10_000)
    assert world.answer["state"] == "written"
    assert world.answer["last"] == MOST_SECONDS / 0.5 * 10
    assert world.answer["message"] == "ended after 20 s, the most that one record may take"


def test_a_record_ends_before_it_fills_the_memory(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.growth = MOST_MEGABYTES * 2**20 // 4
    world.run(until=100)
    world.ask(count=1000)
    world.run(until=10_000)
    assert (world.answer["state"], world.answer["first"], world.answer["last"]) == ("written", 101, 140)
    assert world.answer["message"] == "ended with 256 MB of memory, the most that one record may take"


@pytest.mark.parametrize("another", [False, True])
def test_what_nobody_waits_for_any_more_is_not_recorded_on(another: bool, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.ask(count=1000)
    assert world.run(until=50) == [("profiling", 0)]
    world.request.unlink()
    if another:
        world.ask(first=61, last=70)
    world.run(until=100)
    assert world.trace.saved == ([False, True] if another else [False])
    assert len(world.trace.folders) == len(world.trace.saved)
    assert (world.answer["state"] == "written") is another


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"id": "x", "first": 5, "last": 20}', "steps 5-20 are over: 30 steps are done"),
        ('{"id": "x", "first": 441, "last": 450}', "training ends with step 440"),
        ('{"id": "x"}', "the request is malformed"),
        ("{", "the request is malformed"),
    ],
)
def test_what_can_not_be_had_is_refused(text: str, words: str, tmp_path: Path) -> None:
    world = World(tmp_path, total=440)
    world.run(until=30)
    world.request.write_text(text)
    assert world.run(until=40) == [("refused", 30)]
    assert words in world.answer["message"]
    assert not world.request.exists()
    assert not world.trace.folders


@pytest.mark.parametrize(
    ("fails", "words"),
    [
        ("start", "TensorFlow can't record now: Another profiler is running."),
        ("stop", "what was recorded can't be written: No space left on device"),
    ],
)
def test_a_profiler_that_fails_is_told_and_ends_nothing(fails: str, words: str, tmp_path: Path) -> None:
    world = World(tmp_path)
    world.trace.fails = fails
    world.ask(count=10)
    world.run(until=40)
    assert (world.answer["state"], world.answer["message"]) == ("refused", words)
    world.trace.fails = ""
    world.ask(count=10)
    assert world.run(until=80)[-1][0] == "written"


def test_a_request_that_is_taken_back_or_replaced(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.ask(first=100, last=110)
    world.run(until=50)
    world.request.unlink()
    world.run(until=300)
    assert not world.trace.folders
    world.ask(first=1000, last=1010)
    world.run(until=310)
    world.ask(first=400, last=410)
    world.run(until=500)
    assert (world.answer["state"], world.answer["first"]) == ("written", 391)


def test_how_far_it_is_is_told_now_and_then(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.ask(first=1000, last=1010)
    world.run(until=10)
    assert world.answer == {"id": "x", "state": "waiting", "step": 0}
    world.run(until=100)
    assert world.answer["step"] == 0
    world.run(until=110)
    assert world.answer["step"] == 100


def test_training_that_ends_says_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.ask(first=95, last=500)
    world.run(until=200)
    world.profiler.finish(200)
    assert (world.answer["state"], world.answer["last"]) == ("written", 200)
    world.ask(first=900, last=910)
    world.profiler.finish(200)
    assert world.answer["message"] == "training has ended with step 200"


def test_only_a_record_has_marks(tmp_path: Path) -> None:
    world = World(tmp_path)
    with world.profiler.mark(0) as marked:
        assert marked is None
    world.ask(count=1)
    world.profiler.between_calls(0, 1)
    with world.profiler.mark(7) as marked:
        assert marked == 7


def test_tensorflow_writes_what_tensorboard_opens(tmp_path: Path) -> None:
    trace = Trace()
    trace.start(tmp_path)
    with trace.mark(3):
        tf.linalg.matmul(tf.ones([8, 8]), tf.ones([8, 8]))
    trace.stop(save=True)
    (written,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    assert b"MatMul" in written.read_bytes()
    trace.start(tmp_path / "forgotten")
    trace.stop(save=False)
    assert not (tmp_path / "forgotten").exists()
