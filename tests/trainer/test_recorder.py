"""What TensorBoard is given of a training, and when."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.trainer.alone import replica, train
from support.trainer.events import read_events
from trainjob_trainer import Environment, Task
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.checkpoint_manager import Ending
from trainjob_trainer.edge import StopRequest
from trainjob_trainer.engine.work_time import OwnTime
from trainjob_trainer.recipe import TrainingPlan
from trainjob_trainer.recorder import SECONDS_BETWEEN_FIGURES, Recorder
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.progress import ProgressFile

PLAN = TrainingPlan(total_steps=1000, epoch_steps=100, checkpoint_every=100, global_batch=8)


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class World:
    def __init__(self, me: Replica) -> None:
        self.clock = Clock()
        self.machine: Any = SimpleNamespace(figures=lambda: {"gpu_0/utilization": 0.5})
        self.recorder = Recorder(me, PLAN, self.clock, self.machine)
        self.logs = me.environment.log_dir
        self.progress = me.progress

    def call(self, step: int, *, count: int = 10, after: float = 5.0) -> None:
        """Ten steps of half a second, a fifth of it for their input."""
        self.clock.seconds += after
        self.recorder.record_call(step, count, 0.5 * count, OwnTime(0.3, 0.1), {"loss": 1.0 / step})

    def seen(self) -> dict[str, dict[int, Any]]:
        self.recorder._summaries.flush()
        return read_events(self.logs)


def test_step_times_and_the_machine_come_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    world = World(replica(tmp_path))
    for step in (10, 20, 30, 40):
        world.call(step)
    world.recorder.end(Ending(40, 40, {}))
    seen = world.seen()
    assert SECONDS_BETWEEN_FIGURES == 15.0
    assert seen["gpu_0/utilization"] == {30: 0.5, 40: 0.5}
    assert seen["input_share"] == pytest.approx({30: 0.2, 40: 0.2})
    assert seen["step_seconds"] == pytest.approx({30: 0.5, 40: 0.5})


@pytest.mark.parametrize(
    ("calls", "share"),
    [
        ([(2, None)], None),
        ([(2, None), (2, 0.25)], 0.5),
        ([(1, 0.6)], 1.0),  # the two are measured by different clocks
        ([(1, -0.1)], 0.0),
    ],
)
def test_the_share_of_the_input_is_of_what_is_known(
    calls: list[tuple[int, float | None]], share: float | None, tmp_path: Path
) -> None:
    world = World(replica(tmp_path))
    for count, waited in calls:
        world.recorder.record_call(count, count, 0.5 * count, OwnTime(None, waited), {})
    world.recorder.end(Ending(4, 4, {}))
    assert world.seen().get("input_share", {}) == ({} if share is None else {4: share})


def test_epochs_that_take_longer_show_metrics_on_the_way(tmp_path: Path) -> None:
    world = World(replica(tmp_path))
    world.call(30, after=16)
    world.call(60, after=16)
    world.clock.seconds += 1
    world.recorder.record_epoch(100, {"loss": 0.01})
    world.call(110, after=16)
    world.call(120, after=16)
    seen = world.seen()
    assert seen["loss"] == pytest.approx({30: 1 / 30, 60: 1 / 60, 100: 0.01, 120: 1 / 120})
    assert set(seen["examples_per_second"]) == {30, 60, 100, 120}
    assert set(seen["step_seconds"]) == {30, 60, 110, 120}


def test_the_report_says_how_long_the_input_was_waited_for(tmp_path: Path) -> None:
    world = World(replica(tmp_path))
    world.call(10)
    report = json.loads(json.dumps(world.progress.last.to_json()))
    assert (report["stepSeconds"], report["workSeconds"], report["inputSeconds"]) == (0.5, 0.3, 0.1)


def test_others_than_the_writer_write_the_figures_of_their_gpus(tmp_path: Path) -> None:
    task = Task("worker", 1, {"worker": ("a:1", "b:1")})
    environment = Environment.from_environment({"TRAINJOB_OUTPUT_DIR": str(tmp_path)}, task)
    store = CheckpointStore(environment.checkpoint_dir)
    world = World(Replica(task, environment, store, ProgressFile(None), StopRequest()))
    world.call(10, after=20)
    world.recorder.record_epoch(100, {"loss": 0.5})
    world.recorder.end(Ending(100, 100, {}))
    assert read_events(tmp_path / "logs/worker-1") == {"gpu_0/utilization": {10: 0.5, 100: 0.5}}
    assert not (tmp_path / "logs/train").exists()


def test_without_a_gpu_others_than_the_writer_write_nothing(tmp_path: Path) -> None:
    task = Task("worker", 1, {"worker": ("a:1", "b:1")})
    environment = Environment.from_environment({"TRAINJOB_OUTPUT_DIR": str(tmp_path)}, task)
    me = Replica(
        task, environment, CheckpointStore(environment.checkpoint_dir), ProgressFile(None), StopRequest()
    )
    Recorder(me, PLAN, Clock()).end(Ending(100, 100, {}))
    assert not list(tmp_path.rglob("events.*"))


def test_training_and_evaluation_lie_side_by_side(tmp_path: Path) -> None:
    """Below one folder, two runs whose scalars have the same names."""
    train(tmp_path, steps=4, export=False)
    trained, evaluated = read_events(tmp_path / "logs/train"), read_events(tmp_path / "evaluator/logs")
    assert set(evaluated) == {"loss"}
    assert set(evaluated["loss"]) == {4}
    assert {2, 4} <= set(trained["loss"])
    assert trained["step_seconds"][4] > 0
    assert 0 <= trained["input_share"][4] <= 1
    assert trained["host_memory_bytes"][4] > 1e6
