"""Where one call of `fit` stands, and what a checkpoint has to say for a later attempt to go on from it.

A script may call `fit` several times, on one model or on several. Each model has checkpoints of its own
(the first one those of the job), and its calls are numbered. After a restart the script runs from its top:
a call that had ended comes back at once with the model restored, the one that was under way goes on after
its last whole epoch, and later ones train as usual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from trainjob_trainer.checkpoint.snapshot import HostGroups, NamedArray, json_group, read_json
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore
from trainjob_trainer.engine.not_finite import FiniteWatch
from trainjob_trainer.engine.steps_per_execution import StepsPerExecution

if TYPE_CHECKING:
    from trainjob_trainer.distribution.divergence import WeightsWatch
    from trainjob_trainer.engine.work_time import OwnTime

GROUP = "fit"
"""Name of the checkpoint's group that holds a `FitState`."""


KEPT_CALLS = 10
"""So many calls of `fit`, the newest, keep their last checkpoint: scripts use a model between two."""


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
        complete: whether the call has ended.
        past: the calls so far, this one last.
        callbacks: what Keras's deciding callbacks remember, by position.
        settings: `resume.settings_of` the call.
    """

    call: int
    epochs_done: int
    epochs_asked: int
    complete: bool
    past: Sequence[PastCall] = ()
    callbacks: Sequence[Mapping[str, Any]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_arrays(self) -> list[NamedArray]:
        """As a group of a checkpoint: JSON in bytes."""
        return json_group("state", asdict(self), default=_plain)

    @classmethod
    def from_groups(cls, groups: HostGroups, checkpoint: Checkpoint, *, finished: bool) -> FitState:
        """Read it back; a checkpoint of the library's own loop has none, and counts as one call."""
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
    """Decide from the newest checkpoint.

    Args:
        state: of the newest checkpoint, None without one.
        number: this call's.
        epochs: this call's `epochs`.
        script_finished: whether the folder carries the final marker.
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
        store: its checkpoints.
        calls: how many times `fit` has been called on it.
        saved: step of its newest checkpoint, 0 without one.
        past: its calls that have ended.
        compiles: whether XLA is asked for.
    """

    number: int
    store: CheckpointStore
    calls: int = 0
    saved: int = 0
    past: list[PastCall] = field(default_factory=list)
    compiles: bool = False


@dataclass
class FitCall:
    """The call under way.

    Attributes:
        record: its model's.
        number: of the call on this model.
        epochs: asked for.
        epoch: Keras's number of the epoch under way, from 0.
        plan: what there is to do.
        skipped_to: step of the checkpoint that it had left at its end, where it is skipped.
        resumed: the state it started from.
        resumed_groups: everything in the checkpoint it started from, until all has been put back.
        epochs_run: numbers of the epochs that its `History` holds, earlier attempts' included.
        history: what it holds of them.
        batch_size: rows of a global batch, when known.
        settings: `resume.settings_of` it, once the model is built.
        executions: batches of a call, where they are ours to choose.
        gathers: whether gradients are gathered rows, as an Embedding's; true until a step is traced.
        sees_tests: whether a callback of the evaluation under way looks at its batches.
        own_time: what a step of the last call took this worker by itself, where that is measured.
        watch: for losses, gradients and weights that are not finite.
        weights: compares those of the workers, where they train one model together.
    """

    record: ModelRecord
    number: int
    epochs: int
    epoch: int = 0
    plan: ResumePlan = ResumePlan.TRAIN
    skipped_to: int = 0
    resumed: FitState | None = None
    resumed_groups: HostGroups = field(default_factory=dict)
    epochs_run: list[int] = field(default_factory=list)
    history: dict[str, list[Any]] = field(default_factory=dict)
    batch_size: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    executions: StepsPerExecution | None = None
    gathers: bool = True
    sees_tests: bool = False
    own_time: OwnTime | None = None
    watch: FiniteWatch | None = None
    weights: WeightsWatch | None = None
