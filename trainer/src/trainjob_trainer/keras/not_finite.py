"""Losses and gradients that are NaN or infinite: in which step, of which worker, and what follows.

Each device checks its own before they are summed, since the sum doesn't show its source. Within a call of
many steps TensorFlow only records the first such step; the workers exchange it at the end of the call, before
anything is saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from trainjob_trainer.checkpoint.snapshot import NamedArray, VariableGroups, variable_name
from trainjob_trainer.errors import NotFinite
from trainjob_trainer.reporting.progress import announce
from trainjob_trainer.task import Task

SKIPPED = "skipped_steps"
"""The metric that counts skipped updates."""


class OnNan(Enum):
    """What to do when a loss or a gradient is NaN or infinite."""

    STOP = "stop"
    SKIP = "skip"
    """Skip that step's update on all workers."""
    IGNORE = "ignore"


@dataclass(frozen=True)
class Found:
    """The NaN or infinite steps in a call of many steps.

    `first` has the first such step within the call for each process or device, from 1; 0 without one.
    """

    first: Sequence[int] = ()
    skipped: int = 0

    @property
    def step(self) -> int:
        """The first such step of any process or device, from 1; 0 without one."""
        return min((one for one in self.first if one), default=0)

    @property
    def replicas(self) -> list[int]:
        """Numbers of the processes or devices that had this step."""
        return [replica for replica, one in enumerate(self.first) if one and one == self.step]


class FiniteWatch:
    """Decides after each call whether training continues; the decision is the same on every worker."""

    def __init__(self, on_nan: OnNan, task: Task) -> None:
        self.on_nan = on_nan
        self.skipped = 0
        self._task = task

    @property
    def metrics(self) -> dict[str, float]:
        """The number of skipped updates, if `on_nan` is `SKIP`."""
        return {SKIPPED: float(self.skipped)} if self.on_nan is OnNan.SKIP else {}

    def look(self, found: Found, steps_before: int) -> None:
        """Check a call that began after `steps_before` steps.

        Raises:
            NotFinite: a loss or a gradient is NaN or infinite, and `on_nan` is `STOP`.
        """
        if not found.step or self.on_nan is OnNan.IGNORE:
            return
        step = steps_before + found.step
        whose = " and ".join(workers_of(found, self._task))
        if self.on_nan is OnNan.STOP:
            skipping = ', or on_nan="skip" (TRAIN_ON_NAN=skip) if single batches are at fault'
            raise NotFinite(
                f"step {step}: the loss or a gradient of {whose} is NaN or infinite; nothing of it has been "
                "saved. A smaller learning rate or clipping may help"
                + ("" if self._task.has_parameter_servers else skipping)
            )
        self.skipped += found.skipped
        if self._task.is_writer:
            announce(
                f"step {step}: the loss or a gradient of {whose} is NaN or infinite; updates left out so "
                f"far: {self.skipped}"
            )

    def check_weights(self, groups: VariableGroups, host: Mapping[str, Sequence[NamedArray]]) -> None:
        """Check the weights before a checkpoint: a step that can't be watched may have spoiled them.

        Raises:
            NotFinite: a trainable variable has a NaN or infinite value.
        """
        if self.on_nan is OnNan.IGNORE:
            return
        for variable, array in zip(groups.get("model", ()), host.get("model", ())):
            if not getattr(variable, "trainable", False):
                continue
            # A sum takes a quarter of the time of checking each value; only too large weights overflow it.
            if not np.isfinite(
                np.sum(array.value, dtype="float32" if array.value.dtype.itemsize < 4 else None)
            ):
                raise NotFinite(
                    f"{self._task.replica}: the weights {variable_name(variable)} are NaN or infinite, so no "
                    "checkpoint is written; the last one is from before"
                )


def workers_of(found: Found, task: Task) -> list[str]:
    """Return the names of workers that had this step, once each; devices are numbered worker by worker."""
    names = task.trainees
    devices = max(1, len(found.first) // len(names))
    return list(dict.fromkeys(names[replica // devices] for replica in found.replicas))
