from __future__ import annotations

import pytest

from trainjob_trainer import Task
from trainjob_trainer.distribution import strategy
from trainjob_trainer.distribution.strategy import Kind, choose_kind
from trainjob_trainer.reporting.progress import ProgressFile

TWO = {"worker": ("a:1", "b:1"), "evaluator": ("e:1",)}
ONE = {"worker": ("a:1",)}
SERVED = {"chief": ("c:1",), "worker": ("a:1", "b:1"), "ps": ("p:1",)}


@pytest.mark.parametrize(
    ("task", "devices", "kind"),
    [
        (Task("worker", 0, {}), 1, Kind.SINGLE),
        (Task("worker", 0, {}), 2, Kind.MIRRORED),
        (Task("worker", 0, ONE), 1, Kind.MULTI_WORKER),
        (Task("worker", 0, ONE), 4, Kind.MULTI_WORKER),
        (Task("worker", 1, TWO), 4, Kind.MULTI_WORKER),
        (Task("evaluator", 0, TWO), 4, Kind.EVALUATOR),
        (Task("chief", 0, {"chief": ("c:1",), "worker": ("a:1",)}), 1, Kind.MULTI_WORKER),
        (Task("chief", 0, SERVED), 2, Kind.COORDINATED),
    ],
)
def test_the_role_and_the_devices_decide(task: Task, devices: int, kind: Kind) -> None:
    assert choose_kind(task, devices=devices) is kind


@pytest.mark.parametrize(
    ("task", "state"),
    [
        (Task("worker", 1, TWO), "waiting"),
        (Task("chief", 0, SERVED), "waiting"),
        (Task("worker", 0, ONE), "starting"),
        (Task("evaluator", 0, TWO), "starting"),
    ],
)
def test_replicas_that_wait_for_others_say_so(
    task: Task, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress, seen = ProgressFile(None), []

    def see(*_: object, **__: object) -> None:
        seen.append(progress.last.state)

    for name in ("wait_for_first_worker", "bear_pauses"):
        monkeypatch.setattr(strategy, name, lambda *_, **__: None)
    monkeypatch.setattr(strategy, "_build", see)
    monkeypatch.setattr(strategy, "create_locally", lambda *_: None)
    strategy.build_strategy(task, progress=progress)
    assert (seen, progress.last.state) == ([state], "starting")
