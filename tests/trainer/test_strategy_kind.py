from __future__ import annotations

from types import SimpleNamespace

import pytest

from trainjob_trainer import Task
from trainjob_trainer.distribution import strategy
from trainjob_trainer.reporting.progress import ProgressFile

TWO = {"worker": ("a:1", "b:1"), "evaluator": ("e:1",)}
ONE = {"worker": ("a:1",)}
SERVED = {"chief": ("c:1",), "worker": ("a:1", "b:1"), "ps": ("p:1",)}


@pytest.mark.parametrize(
    ("task", "devices", "kind"),
    [
        (Task("worker", 0, {}), 1, "get_strategy"),
        (Task("worker", 0, {}), 2, "MirroredStrategy"),
        (Task("worker", 0, ONE), 1, "MultiWorkerMirroredStrategy"),
        (Task("worker", 0, ONE), 4, "MultiWorkerMirroredStrategy"),
        (Task("worker", 1, TWO), 4, "MultiWorkerMirroredStrategy"),
        (Task("evaluator", 0, TWO), 4, "OneDeviceStrategy"),
        (Task("chief", 0, {"chief": ("c:1",), "worker": ("a:1",)}), 1, "MultiWorkerMirroredStrategy"),
    ],
)
def test_the_role_and_the_devices_decide(
    task: Task, devices: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy, "_devices", lambda: ["CPU:0", "CPU:1", "CPU:2", "CPU:3"][:devices])
    monkeypatch.setattr(strategy, "prepare", lambda _: None)
    monkeypatch.setattr(strategy.tf.distribute, kind, lambda *_: kind)
    assert strategy.build_strategy(task) == kind


def test_a_chief_that_waits_for_its_servers_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    progress, seen = ProgressFile(None), []
    monkeypatch.setattr(strategy, "wait_for_servers", lambda _: seen.append(progress.last.state))
    monkeypatch.setattr(strategy, "bear_pauses", lambda **_: None)
    built = SimpleNamespace(num_replicas_in_sync=1)
    monkeypatch.setattr(strategy.tf.distribute, "ParameterServerStrategy", lambda _: built)
    assert strategy.build_strategy(Task("chief", 0, SERVED), progress=progress) is built
    assert (seen, progress.last.state) == (["waiting"], "starting")
