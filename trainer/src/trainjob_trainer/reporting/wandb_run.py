"""Weights & Biases in addition to TensorBoard, where it is enabled. Its errors never end training.

Training and evaluation have one run each, in one group with the job's name, so figures of the same name share
a chart. A job keeps its runs when training restarts. The variables that W&B itself reads (WANDB_PROJECT,
WANDB_MODE, ...) set the server, the project and all else.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainjob_trainer.environment import Environment
from trainjob_trainer.errors import InvalidConfiguration, first_line
from trainjob_trainer.reporting.progress import announce
from trainjob_trainer.task import Task

_SECONDS_TO_BEGIN = 30.0
_SECONDS_TO_END = 60.0
_BINS = 64
_STEP = "step"


@dataclass(frozen=True)
class WandbPlan:
    """Names and folder of a run.

    The kind is `train` or `evaluate`. Files are in the output folder until they are uploaded, unless
    WANDB_DIR is set.
    """

    environment: Environment
    config: Mapping[str, Any]
    kind: str = "train"

    def arguments(self, env: Mapping[str, str]) -> dict[str, Any]:
        """Return the arguments of `wandb.init`, without those that W&B reads from variables that are set."""
        job, uid = self.environment.name, self.environment.uid
        chosen = {
            "project": ("WANDB_PROJECT", job),
            "name": ("WANDB_NAME", job if self.kind == "train" else f"{job}-{self.kind}"),
            "group": ("WANDB_RUN_GROUP", job),
            "job_type": ("WANDB_JOB_TYPE", self.kind),
            "dir": ("WANDB_DIR", str(self.environment.output_dir)),
        }
        found: dict[str, Any] = {
            name: ours for name, (variable, ours) in chosen.items() if not env.get(variable)
        }
        # WANDB_RUN_ID would be the same for both runs, so the id consists of the job's UID and the kind.
        same = {"id": f"{uid}-{self.kind}", "resume": "allow"} if uid else {}
        return {**found, **same, "config": dict(self.config)}


class WandbRun:
    """One run; it starts with the first figures or with `begin`. An error ends it, with one log line.

    The constructor raises InvalidConfiguration if the package can't be imported.
    """

    def __init__(
        self,
        plan: WandbPlan,
        wandb: Any = None,
        env: Mapping[str, str] = os.environ,
        tell: Callable[[str], None] = announce,
    ) -> None:
        self._plan = plan
        self._wandb = wandb or _load()
        self._env = env
        self._tell = tell
        self._run: Any = None
        self._is_over = False

    def as_evaluator(self, environment: Environment) -> WandbRun:
        """Return the run for the evaluation by the same process."""
        plan = replace(self._plan, environment=environment, kind="evaluate")
        return WandbRun(plan, self._wandb, self._env, self._tell)

    def begin(self) -> None:
        """Start the run, unless it has started or is over."""
        if self._run is None and not self._is_over:
            self._try(self._begin)

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """Record figures of a step. W&B's own step is not used: after a restart steps repeat."""
        self.begin()
        if self._run is not None:
            self._try(lambda: self._run.log({_STEP: step, **figures}))

    def log_histogram(self, step: int, name: str, values: np.ndarray[Any, Any]) -> None:
        """Record the distribution of values."""
        histogram = np.histogram(values, _BINS)
        self.log(step, {name: self._wandb.Histogram(np_histogram=histogram)})

    def finish(self) -> None:
        """End the run, and wait a limited time for its uploads."""
        run, self._run, self._is_over = self._run, None, True
        if run is None:
            return
        ending = threading.Thread(target=lambda: self._try(run.finish), name="trainjob-wandb", daemon=True)
        ending.start()
        ending.join(_SECONDS_TO_END)
        if ending.is_alive():
            self._tell(
                f"W&B has not taken everything in {_SECONDS_TO_END:.0f} s; `wandb sync` uploads the rest"
            )

    def _begin(self) -> None:
        settings = self._wandb.Settings(init_timeout=_SECONDS_TO_BEGIN)
        run = self._wandb.init(settings=settings, **self._plan.arguments(self._env))
        run.define_metric(_STEP)
        run.define_metric("*", step_metric=_STEP)
        self._run = run

    def _try(self, do: Callable[[], object]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - whatever it is, training is more important
            self._run, self._is_over = None, True
            self._tell(f"nothing more is logged to W&B: {first_line(error)}")


def begin_run(task: Task, environment: Environment, config: Mapping[str, Any]) -> WandbRun | None:
    """Return a started run on the writer and the evaluator, else None.

    Raises InvalidConfiguration if wandb can't be imported.
    """
    if not (task.is_writer or task.is_evaluator):
        return None
    run = WandbRun(WandbPlan(environment, config, "evaluate" if task.is_evaluator else "train"))
    run.begin()
    return run


def _load() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise InvalidConfiguration(
            f"wandb: is asked for, and the package can't be imported ({error}): install it in the image, "
            "as trainjob-trainer[wandb] does"
        ) from error
