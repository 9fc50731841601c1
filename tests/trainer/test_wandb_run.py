"""W&B without a network: with its own package offline, and with one that fails."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trainjob_trainer import Environment, InvalidConfiguration, Task
from trainjob_trainer.reporting.wandb_run import WandbPlan, WandbRun, begin_run

TWO = {"worker": ("a:1", "b:1"), "evaluator": ("c:1",)}


class FakeWandb:
    """Takes notes; `fails` names the call that raises."""

    def __init__(self, fails: str = "") -> None:
        self.fails = fails
        self.runs: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []
        self.finished = 0

    def Settings(self, **settings: Any) -> dict[str, Any]:  # noqa: N802 - W&B's name, as the next one
        return settings

    def Histogram(self, np_histogram: Any) -> Any:  # noqa: N802
        return np_histogram

    def init(self, **arguments: Any) -> Any:
        self._may_fail("init")
        self.runs.append(arguments)
        return SimpleNamespace(log=self._log, finish=self._finish, define_metric=lambda *_, **__: None)

    def _log(self, figures: dict[str, Any]) -> None:
        self._may_fail("log")
        self.logged.append(figures)

    def _finish(self) -> None:
        self._may_fail("finish")
        self.finished += 1

    def _may_fail(self, name: str) -> None:
        if self.fails == name:
            raise RuntimeError(f"{name}: no network\nmore")


def environment(folder: Path, uid: str = "1234") -> Environment:
    return Environment("digits", uid, 1, folder, folder / "checkpoints", folder / "logs/train")


def run(
    folder: Path, fails: str = "", env: dict[str, str] | None = None
) -> tuple[WandbRun, FakeWandb, list[str]]:
    wandb, said = FakeWandb(fails), list[str]()
    plan = WandbPlan(environment(folder), {"epochs": 2})
    return WandbRun(plan, wandb, env or {}, said.append), wandb, said


def test_a_run_is_the_jobs_however_often_it_restarts(tmp_path: Path) -> None:
    one, wandb, said = run(tmp_path)
    one.log(10, {"loss": 0.5})
    one.log_histogram(10, "step_seconds", np.array([1.0, 2.0]))
    one.finish()
    evaluator = one.as_evaluator(environment(tmp_path / "evaluator"))
    evaluator.log(10, {"loss": 0.25})
    trained, evaluated = wandb.runs
    assert (trained["id"], trained["resume"], trained["job_type"]) == ("1234-train", "allow", "train")
    assert (evaluated["id"], evaluated["job_type"]) == ("1234-evaluate", "evaluate")
    assert {one["group"] for one in wandb.runs} == {one["project"] for one in wandb.runs} == {"digits"}
    assert (trained["config"], trained["dir"]) == ({"epochs": 2}, str(tmp_path))
    assert [entry["step"] for entry in wandb.logged] == [10, 10, 10]
    assert wandb.logged[1]["step_seconds"][0].sum() == 2
    assert (wandb.finished, said) == (1, [])


def test_what_wandbs_own_variables_say_is_left_to_it(tmp_path: Path) -> None:
    variables = ("PROJECT", "NAME", "RUN_GROUP", "JOB_TYPE", "DIR")
    one, wandb, _ = run(tmp_path, env={f"WANDB_{name}": "theirs" for name in variables})
    one.begin()
    assert set(wandb.runs[0]) == {"id", "resume", "config", "settings"}


def test_without_a_job_each_start_is_a_run() -> None:
    assert "id" not in WandbPlan(environment(Path(), uid=""), {}).arguments({})


@pytest.mark.parametrize("fails", ["init", "log", "finish"])
def test_what_fails_costs_one_line(fails: str, tmp_path: Path) -> None:
    one, wandb, said = run(tmp_path, fails)
    for step in range(3):
        one.log(step, {"loss": 0.5})
    one.finish()
    one.log(4, {"loss": 0.5})
    assert said == [f"nothing more is logged to W&B: {fails}: no network"]
    assert len(wandb.logged) == (3 if fails == "finish" else 0)


@pytest.mark.parametrize(
    ("role", "index", "logs"), [("worker", 0, True), ("worker", 1, False), ("evaluator", 0, True)]
)
def test_whose_figures_are_logged(
    role: str, index: int, logs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)  # type: ignore[arg-type]
    assert (begin_run(Task(role, index, TWO), environment(tmp_path), {}) is not None) is logs
    assert len(wandb.runs) == logs


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InvalidConfiguration, match=r"wandb: .* as trainjob-trainer\[wandb\] does"):
        WandbRun(WandbPlan(environment(tmp_path), {}))


OFFLINE = """
import sys
from pathlib import Path
import numpy as np
from trainjob_trainer import Environment
from trainjob_trainer.reporting.wandb_run import WandbPlan, WandbRun
folder = Path(sys.argv[1])
environment = Environment("digits", "1234", 1, folder, folder, folder)
trained = WandbRun(WandbPlan(environment, {"epochs": 2}))
for run in (trained, trained.as_evaluator(environment)):
    for step in (10, 20, 15):  # it went back once
        run.log(step, {"loss": 1 / step})
    run.log_histogram(20, "step_seconds", np.array([1.0, 2.0]))
    run.finish()
"""


def test_the_package_itself_offline(tmp_path: Path) -> None:
    """Both runs of a job; nothing tries to reach a server."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "WANDB_BASE_URL"), address)
        done = subprocess.run(
            [sys.executable, "-c", OFFLINE, str(tmp_path)],
            env={**os.environ, **proxies, "NO_PROXY": "", "WANDB_MODE": "offline", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, "nothing more is logged" in done.stderr) == (0, False), done.stderr
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    runs = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert sorted(run.stem for run in runs) == ["run-1234-evaluate", "run-1234-train"]
