"""Where one call of `fit` stands, and what a checkpoint has to say for a later attempt to go on from it.

A script may call `fit` several times, on one model or on several. Each model has checkpoints of its own
(the first one those of the job), and its calls are numbered. After a restart the script runs from its top:
a call that had ended comes back at once with the model restored, the one that was under way goes on where
its checkpoint was written, and later ones train as usual.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from trainjob_trainer.checkpoint.snapshot import HostGroups, NamedArray, json_group, read_json
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore
from trainjob_trainer.engine.callbacks import TEST_METHODS, sees_batches
from trainjob_trainer.engine.not_finite import FiniteWatch
from trainjob_trainer.engine.steps_per_execution import Looks, StepsPerExecution

if TYPE_CHECKING:
    from trainjob_trainer.checkpoint_manager import CheckpointWriter
    from trainjob_trainer.distribution.divergence import WeightsWatch
    from trainjob_trainer.engine.metric_state import OverAll
    from trainjob_trainer.engine.work_time import OwnTime
    from trainjob_trainer.task import Task

GROUP = "fit"
"""Name of the checkpoint's group that holds a `FitState`."""


KEPT_CALLS = 10
"""So many calls of `fit`, the newest, keep their last checkpoint: scripts use a model between two."""
TIMES_ITS_OWN = 10
"""At an epoch's end so many times of what a checkpoint took must have passed since: epochs may be short."""
SECONDS_WITHIN_AN_EPOCH = 300.0
"""After so long a checkpoint is written in the midst of an epoch."""


class SaveTimes:
    """When a `fit` saves, by the writer's clock.

    `every` is the user's number of steps between two, if given; `step` is that of the newest, or where
    training began; `within_epochs`: the training can go on within an epoch.
    """

    def __init__(
        self,
        every: int | None,
        step: int = 0,
        clock: Callable[[], float] = time.monotonic,
        *,
        within_epochs: bool = True,
    ) -> None:
        self.every = every
        self.step = step
        self.within_epochs = within_epochs
        self._clock = clock
        self._saved_at = clock()
        self._took = 0.0

    def has_come(self, step: int) -> bool:
        """Whether the user wants a checkpoint of this step; the same on every worker."""
        return self.every is not None and step // self.every > self.step // self.every

    def is_due(self, step: int, *, epoch_ends: bool, is_writing: bool) -> bool:
        """Whether to save after `step` steps; `is_writing`: the checkpoint before is still being written."""
        if self.every is not None:
            return self.has_come(step)
        least = TIMES_ITS_OWN * self._took if epoch_ends else SECONDS_WITHIN_AN_EPOCH
        return not is_writing and self._clock() - self._saved_at >= least

    @contextmanager
    def saving(self, step: int) -> Iterator[None]:
        """Around all that keeps training from going on."""
        began = self._clock()
        yield
        self.step, self._saved_at = step, self._clock()
        self._took = self._saved_at - began


@dataclass(frozen=True)
class PastCall:
    """A call that has ended, or is under way.

    Attributes:
        epochs: numbers of the epochs that its `History` held.
        history: the rest of it.
        step: of the checkpoint that it left at its end; 0 before that.
    """

    epochs: Sequence[int] = ()
    history: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    step: int = 0


@dataclass(frozen=True)
class FitState:
    """Saved beside the variables.

    Attributes:
        call: number of the call on this model, from 1.
        epochs_done: Keras's epoch number to go on with.
        epochs_asked: the call's `epochs`.
        past: the calls so far, this one last.
        callbacks: what Keras's deciding callbacks remember, by position.
        settings: `resume.settings_of` the call.
        batches_done: of the epoch with that number.
    """

    call: int
    epochs_done: int
    epochs_asked: int
    complete: bool
    past: Sequence[PastCall] = ()
    callbacks: Sequence[Mapping[str, Any]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    batches_done: int = 0

    def to_arrays(self) -> list[NamedArray]:
        """As a group of a checkpoint: JSON in bytes."""
        return json_group("state", asdict(self), default=_plain)

    @classmethod
    def from_groups(cls, groups: HostGroups, checkpoint: Checkpoint, *, finished: bool) -> FitState:
        """Read it back; a checkpoint of `train_and_evaluate` has none, and counts as one call."""
        if GROUP not in groups:
            epoch = checkpoint.epoch
            return cls(1, epoch, epoch, finished, (PastCall(),))
        facts = read_json(groups[GROUP])
        facts.pop("first_step", None)  # checkpoints of earlier versions have it
        facts["past"] = tuple(PastCall(**past) for past in facts["past"])
        return cls(**facts)


def _plain(value: Any) -> Any:
    """JSON for what a `History` or a callback holds; a metric may be an array, such as a score by class."""
    array = np.asarray(value)
    return str(value) if array.dtype.hasobject else array.tolist()


class ResumePlan(Enum):
    """What a call has to do."""

    TRAIN = "train"
    RESUME = "resume"
    SKIP = "skip"
    """It had ended in an earlier attempt, and the script had gone on."""
    FINISHED = "finished"
    """It had ended, and so had the script: the output folder is a finished one."""


def choose_plan(state: FitState | None, *, number: int, epochs: int, script_finished: bool) -> ResumePlan:
    """Decide from the state in the newest checkpoint, None without one.

    `number` and `epochs` are this call's; `script_finished`: the folder carries the final marker.
    """
    if state is None or number > state.call:
        return ResumePlan.TRAIN
    if number < state.call:
        return ResumePlan.SKIP
    if state.complete and epochs <= state.epochs_asked:
        return ResumePlan.FINISHED if script_finished else ResumePlan.SKIP
    return ResumePlan.RESUME


@dataclass
class ModelRecord:
    """What is known of one model of the script.

    Attributes:
        number: in the order of their first `fit`, from 1.
        calls: how many times `fit` has been called on it.
        saved: step of the checkpoint that its newest call has ended with or begun at, 0 without one.
        past: its calls that have ended.
        compiles: whether XLA is asked for.
    """

    number: int
    store: CheckpointStore
    writer: CheckpointWriter
    calls: int = 0
    saved: int = 0
    past: list[PastCall] = field(default_factory=list)
    compiles: bool = False


@dataclass(frozen=True)
class Seen:
    """What callbacks of any worker look at: one worker may have more of them than the others.

    Attributes:
        batches: of training; then each call takes as many as Keras's would.
        tests: batches of a validation.
        epochs: anything at all, so that one may end training.
    """

    batches: bool = False
    tests: bool = False
    epochs: bool = False

    @classmethod
    def by_any(cls, strategy: Any, task: Task, callbacks: Sequence[Any]) -> Seen:
        """All workers call it together, and get the same."""
        from trainjob_trainer.distribution.collective import gather_all  # noqa: PLC0415 - needs all of TensorFlow

        batches = any(sees_batches(one) for one in callbacks)
        tests = any(sees_batches(one, TEST_METHODS) for one in callbacks)
        told = gather_all(strategy, task, [int(batches), int(tests), int(bool(callbacks))])
        return cls(*(any(one) for one in zip(*told, strict=True)))


@dataclass(kw_only=True)
class FitCall:
    """The `fit` under way, as what is put into Keras sees it.

    Attributes:
        number: of the call on this model.
        every: steps at which a call ends, since a checkpoint may be due.
        last_step: of the training, where that may be in the midst of an epoch.
        epoch: Keras's number of the epoch under way, from 0.
        midway: an epoch's number, and how many of its batches an earlier attempt has taken.
        reads_over: whether those are still to be read.
        any_step: whether many batches are taken in one call whatever the model's step is.
        batch_size: rows of a global batch, when known.
        executions: batches of a call, where they are ours to choose.
        compiles: whether XLA is asked for.
        gathers: whether gradients are gathered rows, as an Embedding's; true until a step is traced.
        has_begun: whether Keras's `fit` has been called for it; another one is a callback's.
        seen: what callbacks look at.
        sees_tests: whether a callback of the evaluation under way looks at its batches.
        own_time: what a step of the last call took this worker by itself, where that is measured.
        watch: for losses, gradients and weights that are not finite.
    """

    number: int
    epochs: int
    metrics: OverAll
    every: int | None = None
    last_step: int | None = None
    epoch: int = 0
    midway: tuple[int, int] = (0, 0)
    reads_over: bool = True
    any_step: bool = False
    batch_size: int | None = None
    executions: StepsPerExecution | None = None
    compiles: bool = False
    gathers: bool = True
    has_begun: bool = False
    seen: Seen = Seen()
    sees_tests: bool = False
    own_time: OwnTime | None = None
    watch: FiniteWatch | None = None

    @property
    def batches_before(self) -> int:
        """Batches of the epoch under way that an earlier attempt has taken."""
        epoch, batches = self.midway
        return batches if epoch == self.epoch else 0


@dataclass(kw_only=True)
class ScriptCall(FitCall):
    """A call of a script of the user's.

    Attributes:
        looks: when the workers agree on whether to save or to stop.
        skipped_to: step of the checkpoint that it had left at its end, where it is skipped.
        resumed: the state it started from.
        resumed_groups: everything in the checkpoint it started from, until all has been put back.
        epochs_run: numbers of the epochs that its `History` holds, earlier attempts' included.
        history: what it holds of them.
        settings: `resume.settings_of` it, once the model is built.
        weights: compares those of the workers, where they train one model together.
    """

    record: ModelRecord
    times: SaveTimes
    looks: Looks
    plan: ResumePlan = ResumePlan.TRAIN
    skipped_to: int = 0
    resumed: FitState | None = None
    resumed_groups: HostGroups = field(default_factory=dict)
    epochs_run: list[int] = field(default_factory=list)
    history: dict[str, list[Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: WeightsWatch | None = None
