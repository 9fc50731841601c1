"""What a training is asked to do, checked and counted in steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainjob_trainer.errors import InvalidConfiguration

_CHECKPOINTS_OF_ENDLESS_DATA = 10


@dataclass(frozen=True)
class TrainingPlan:
    """A training in steps.

    Attributes:
        epoch_steps: full batches in one pass over the data, or None when the data is endless.
        checkpoint_every: steps between checkpoints.
        global_batch: examples a step, over all workers.
        patience: values without an improvement that end it, or None.
        keep_best: whether the best checkpoint is handed over.
    """

    total_steps: int
    epoch_steps: int | None
    checkpoint_every: int
    global_batch: int
    patience: int | None = None
    keep_best: bool = False

    @property
    def numbers(self) -> Mapping[str, int]:
        """All of it as integers by name, for workers to compare."""
        return {
            "steps": self.total_steps,
            "steps an epoch": self.epoch_steps or 0,
            "steps between checkpoints": self.checkpoint_every,
            "examples a step": self.global_batch,
            "values without an improvement": self.patience or 0,
            "best checkpoints to keep": int(self.keep_best),
        }

    @property
    def total_epochs(self) -> int | None:
        """Passes over the data, the last perhaps cut off."""
        return -(-self.total_steps // self.epoch_steps) if self.epoch_steps else None

    def epoch_at(self, step: int) -> int | None:
        """The epoch under way, from 1, when `step` steps are done."""
        if not self.epoch_steps:
            return None
        return min(step // self.epoch_steps + 1, self.total_epochs or 1)

    def is_epoch_end(self, step: int) -> bool:
        """Whether an epoch ends when `step` steps are done; the last one does so at the end."""
        return step == self.total_steps or step % (self.epoch_steps or step + 1) == 0

    def epochs_done(self, step: int) -> int:
        """Whole epochs in `step` steps."""
        return step // self.epoch_steps if self.epoch_steps else 0


def batch_of_a_device(global_batch: int, devices: int) -> int:
    """Examples that each training device takes of a global batch.

    Raises InvalidConfiguration unless the devices divide it: unequal shares would weigh examples unequally.
    """
    if global_batch % devices:
        below = global_batch - global_batch % devices
        choice = f"{below} or {below + devices}" if below else str(devices)
        raise InvalidConfiguration(
            f"global_batch: {global_batch} examples can't be shared evenly by {devices} workers or devices; "
            f"use {choice}"
        )
    return global_batch // devices


def build_plan(
    *,
    examples: int | None,
    epochs: int | None,
    steps: int | None,
    global_batch: int,
    checkpoint_every: int | None,
    patience: int | None = None,
    keep_best: bool = False,
) -> TrainingPlan:
    """Count steps. An epoch is as many full batches as the data holds, at least one.

    Raises InvalidConfiguration for epochs of endless data.
    """
    epoch_steps = None if examples is None else max(1, examples // global_batch)
    if epochs is not None and epoch_steps is None:
        raise InvalidConfiguration(
            "epochs: train() is endless, so there are no epochs; give steps=... instead"
        )
    total = steps if steps is not None else (epochs or 1) * (epoch_steps or 1)
    every = checkpoint_every or epoch_steps or max(1, total // _CHECKPOINTS_OF_ENDLESS_DATA)
    return TrainingPlan(total, epoch_steps, every, global_batch, patience, keep_best)
