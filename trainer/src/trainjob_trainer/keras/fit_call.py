"""The state of one call of `fit`, and what a checkpoint must hold so that a later attempt can resume.

A script may call `fit` several times, on one model or on several. Each model has its own checkpoints, and
its calls are numbered. After a restart the script runs from its top. A call that had ended returns at once
with the model restored, the call that was under way resumes where its checkpoint was written, and later calls
train as usual: each if it is the call that was saved (`identity.py`). Else it trains from the beginning.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trainjob_trainer.checkpoint.snapshot import HostGroups, NamedArray
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.errors import CheckpointMismatch
from trainjob_trainer.identity import Identity
from trainjob_trainer.keras.not_finite import FiniteWatch
from trainjob_trainer.keras.pace import Looks, StepsPerExecution
from trainjob_trainer.resume import ResumePlan

if TYPE_CHECKING:
    from trainjob_trainer.checkpoint_manager import CheckpointWriter
    from trainjob_trainer.distribution.divergence import WeightsWatch
    from trainjob_trainer.keras.work_time import OwnTime

GROUP = "fit"
"""Name of the checkpoint group that holds a `FitState`."""


KEPT_CALLS = 10
"""Number of the newest `fit` calls that keep their last checkpoint: scripts use a model between calls."""
TIMES_ITS_OWN = 10
"""Minimum time between saves at epoch ends, in durations of the last save: epochs may be short."""
SECONDS_WITHIN_AN_EPOCH = 300.0
"""After this many seconds a checkpoint is written within an epoch."""


class SaveTimes:
    """When a `fit` saves, by the writer's clock.

    `every` is the user's number of steps between checkpoints, if given; `step` is the step of the newest, or
    where training began.
    """

    def __init__(self, every: int | None, step: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.every = every
        self.step = step
        self._clock = clock
        self._saved_at = clock()
        self._took = 0.0

    def has_come(self, step: int) -> bool:
        """Return whether the user wants a checkpoint at this step; the same on every worker."""
        return self.every is not None and step // self.every > self.step // self.every

    def is_due(self, step: int, *, epoch_ends: bool, is_writing: bool) -> bool:
        """Return whether to save after `step` steps; `is_writing`: the last checkpoint is being written."""
        if self.every is not None:
            return self.has_come(step)
        least = SECONDS_WITHIN_AN_EPOCH
        if epoch_ends:  # the machine may have slept within the last save
            least = min(least, TIMES_ITS_OWN * self._took)
        return not is_writing and self._clock() - self._saved_at >= least

    @contextmanager
    def saving(self, step: int) -> Iterator[None]:
        """Measure a save; the `with` block contains all that interrupts training."""
        began = self._clock()
        yield
        self.step, self._saved_at = step, self._clock()
        self._took = self._saved_at - began


@dataclass
class PastCall:
    """What is kept of a call that has ended, or is under way.

    Attributes:
        epochs: numbers of the epochs in its `History`, including those of earlier attempts.
        history: the rest of its `History`.
        step: step of the checkpoint at its end, or of the one restored instead; 0 before its end.
        identity: by which a later attempt knows it; the writer alone has it, once the model is built.
        failed: an error ended it, and the script continued.
        iterators: how many iterators of its training data Keras has done with: the order may depend on it. Of
            the call under way one in use counts.
        taken: batches taken of another one, which serves several epochs or was in use; of the call under way
            until the data stands there.
        validations: how often its validation data was read.
    """

    epochs: list[int] = field(default_factory=list)
    history: dict[str, list[Any]] = field(default_factory=dict)
    step: int = 0
    identity: Identity | None = None
    failed: bool = False
    iterators: int = 0
    taken: int = 0
    validations: int = 0


@dataclass(frozen=True)
class FitState:
    """The state of `fit` that is saved beside the variables.

    Attributes:
        call: number of the call on this model, from 1.
        epochs_done: Keras's number of the epoch to resume with.
        epochs_asked: the call's `epochs`.
        past: the calls so far, this one last.
        callbacks: the values by which Keras's callbacks decide, by position.
        settings: result of `resume.settings_of` for the call.
        batches_done: batches done of the epoch to resume with.
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
        """Return the state as a checkpoint group: JSON in bytes."""
        text = json.dumps(asdict(self), default=_plain)
        return [NamedArray("state", np.frombuffer(text.encode(), np.uint8))]

    @classmethod
    def from_groups(cls, groups: HostGroups) -> FitState:
        """Read the state in a checkpoint; raises CheckpointMismatch if it has none."""
        if GROUP not in groups:
            raise CheckpointMismatch(
                "the checkpoint holds no state of fit(): a loop of the script's own has written it; "
                "train in another output folder"
            )
        facts = json.loads(groups[GROUP][0].value.tobytes())
        for past in facts["past"]:
            past["identity"] = Identity.from_json(past["identity"]) if past["identity"] else None
        facts["past"] = tuple(PastCall(**past) for past in facts["past"])
        return cls(**facts)


def _plain(value: Any) -> Any:
    """Return a value of a `History` or callback for JSON; a metric may be an array: a score by class."""
    array = np.asarray(value)
    return str(value) if array.dtype.hasobject else array.tolist()


def choose_plan(
    state: FitState | None,
    call: Identity,
    *,
    number: int,
    epochs: int,
    is_same_job: bool,
    is_finished: bool,
    is_same_spec: bool = False,
) -> ResumePlan:
    """Choose the plan from the state in the newest checkpoint; the state is None without one.

    `number` and `epochs` are this call's; `is_same_job`: the checkpoint is this job's own, whose script is
    the same; `is_finished`: the folder holds another job's finished training; `is_same_spec`: that job's
    spec is this one's.
    """
    if state is None:
        return ResumePlan.FINISHED if is_finished else ResumePlan.TRAIN
    if number > state.call:
        return ResumePlan.TRAIN
    saved = state.past[number - 1]
    exact = saved.identity == call
    is_newest = number == state.call
    if saved.failed or saved.identity is None or saved.identity.key != call.key:
        plan = ResumePlan.ANEW
    elif is_newest and (not state.complete or (epochs > state.epochs_asked and (exact or not is_same_job))):
        plan = ResumePlan.RESUME
    else:
        plan = ResumePlan.SKIP if exact else ResumePlan.ANEW
    if is_finished and is_same_spec and plan is ResumePlan.SKIP and is_newest:
        return ResumePlan.ALREADY_FINISHED
    is_over = plan is ResumePlan.ANEW or (plan is ResumePlan.SKIP and is_newest)
    return ResumePlan.FINISHED if is_finished and is_over else plan


@dataclass
class ModelRecord:
    """What is known about one model of the script.

    Attributes:
        number: that of its training below the output folder; 0 until its first `fit` has built it.
        calls: how many times `fit` has been called on it.
        past: its calls that have ended.
    """

    number: int
    store: CheckpointStore
    writer: CheckpointWriter
    calls: int = 0
    past: list[PastCall] = field(default_factory=list)

    @property
    def epochs(self) -> int:
        """Epochs that it was trained for by the calls that have ended."""
        return sum(len(one.epochs) for one in self.past)

    @property
    def ends(self) -> list[int]:
        """Steps of the checkpoints that its newest calls ended with: a new one doesn't replace them."""
        return [one.step for one in self.past[-KEPT_CALLS:]]


@dataclass(frozen=True)
class Seen:
    """What the callbacks of any worker look at: workers may have different callbacks.

    Attributes:
        batches: batches of training; then each call takes as many as Keras's own.
        tests: batches of a validation.
    """

    batches: bool = False
    tests: bool = False


@dataclass(kw_only=True)
class FitCall:
    """The call of `fit` under way.

    Attributes:
        number: number of the call on this model.
        record: of its model.
        times: when it saves.
        looks: when the workers agree on whether to save or to stop.
        watch: watch for losses, gradients and weights that are not finite.
        weights: compares the workers' weights, if they train one model together.
        plan: what it has to do.
        kept: what is kept of it, of earlier attempts too.
        settings: result of `resume.settings_of` for it, once the model is built.
        every: a TensorFlow call ends at each multiple of these steps, since a checkpoint may be due.
        epoch: Keras's number of the epoch under way, from 0.
        midway: an epoch's number, and how many of its batches an earlier attempt took.
        rereads: whether all is read again that the order needs (`exact`), or one epoch at most (`epoch`).
        data: Keras's iterator of the epochs of the training data.
        batch_size: rows of a global batch, if known.
        executions: batches per call; None: as many as Keras's.
        gathers: whether gradients are gathered rows, as an Embedding's; true until a step is traced.
        seen: what callbacks look at.
        is_ahead: whether steps after the reported ones are under way, so that nothing can be saved.
        is_scoring: whether an evaluation is under way.
        sees_tests: whether a callback of it looks at its batches.
        own_time: this worker's own time per step of the last call, if measured.
        remembered: state of the user's callbacks to put back, in the form of `callback_state.remembered`.
        resumed_groups: all groups of the checkpoint that it started from, until all are restored.
    """

    number: int
    epochs: int
    record: ModelRecord
    times: SaveTimes
    looks: Looks
    watch: FiniteWatch
    weights: WeightsWatch
    plan: ResumePlan = ResumePlan.TRAIN
    kept: PastCall = field(default_factory=PastCall)
    settings: Mapping[str, Any] = field(default_factory=dict)
    every: int | None = None
    epoch: int = 0
    midway: tuple[int, int] = (0, 0)
    rereads: str = "exact"
    data: Any = None
    batch_size: int | None = None
    executions: StepsPerExecution | None = None
    gathers: bool = True
    seen: Seen = Seen()
    is_ahead: bool = False
    is_scoring: bool = False
    sees_tests: bool = False
    own_time: OwnTime | None = None
    remembered: Sequence[Mapping[str, Any]] = ()
    resumed_groups: HostGroups = field(default_factory=dict)

    @property
    def batches_before(self) -> int:
        """Batches of the epoch under way that an earlier attempt took."""
        epoch, batches = self.midway
        return batches if epoch == self.epoch else 0

    def as_past(self, batches: int = 0, **facts: Any) -> PastCall:
        """Return what is kept of it, with further facts; `batches` are those done of an epoch."""
        data, in_use = self.data, int(batches > 0)
        if data is not None and data.steps_per_epoch:  # an iterator serves several epochs
            in_use = int(data._current_iterator is not None)
        elif data is not None and data.reopens and batches == data._num_batches:
            in_use = 2  # before a validation, Keras has opened the next one
        taken = data._steps_seen if in_use else self.kept.taken
        return replace(self.kept, iterators=self.kept.iterators - in_use, taken=taken, **facts)
