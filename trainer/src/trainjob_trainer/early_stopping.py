"""The choice of the result checkpoint of a training, and early stopping: the same on all workers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from trainjob_trainer.checkpoint.snapshot import HostGroups, NamedArray, VariableGroups, json_group, read_json
from trainjob_trainer.distribution.collective import broadcast
from trainjob_trainer.errors import CheckpointUnreadable, InvalidConfiguration
from trainjob_trainer.evaluation import FOLDER, EvaluatorScores
from trainjob_trainer.recipe import Recipe
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.progress import announce, notice
from trainjob_trainer.resume import load_agreed

# The best value so far, and whether training ends, decided from the values alone.
#
# Each checkpoint contains the values, so an interrupted run decides like an uninterrupted one.


MONITORED = "monitored"
"""Group of a checkpoint: the values of the monitored metric known when it was written."""
VALIDATION = "val_"
"""Prefix of metrics on held-out examples, as in Keras's logs."""


class Value(NamedTuple):
    """A metric's value for the weights after `step` steps; it may be NaN."""

    step: int
    value: float


@dataclass(frozen=True)
class Rule:
    """How values are compared.

    `patience` values without an improvement end the training, None never ends it; an improvement is larger
    than `min_delta`.
    """

    monitor: str
    larger_is_better: bool = False
    patience: int | None = None
    min_delta: float = 0.0

    def improves(self, value: float, best: float | None) -> bool:
        """Return whether a value is the new best one; a value that is not finite never is."""
        if not math.isfinite(value):
            return False
        if best is None:
            return True
        gain = value - best if self.larger_is_better else best - value
        return gain > self.min_delta


@dataclass(frozen=True)
class History:
    """The values so far.

    Attributes:
        values: in the order of their steps, one for each step.
        since: patience counts the values after this step.
        total_steps: steps that the training was to reach when they were seen.
        read: bytes already read of the evaluator's results.
    """

    monitor: str
    values: tuple[Value, ...] = ()
    since: int = 0
    total_steps: int = 0
    read: int = 0

    def with_value(self, step: int, value: float) -> History:
        """Add a value, unless there is one of this or a later step."""
        if self.values and step <= self.values[-1].step:
            return self
        return replace(self, values=(*self.values, Value(step, value)))

    def asked_for(self, total_steps: int, step: int) -> History:
        """Continue at `step` to `total_steps`; more steps than before reset patience."""
        is_more = bool(self.total_steps) and total_steps > self.total_steps
        return replace(self, total_steps=total_steps, since=step if is_more else self.since)

    def to_arrays(self) -> list[NamedArray]:
        """Return a group of a checkpoint: JSON in bytes."""
        return json_group("history", asdict(self))

    @classmethod
    def from_arrays(cls, group: Sequence[NamedArray], monitor: str) -> History | None:
        """Parse the group of a checkpoint; None if it is empty or of another metric."""
        if not group:
            return None
        facts = read_json(group)
        if facts["monitor"] != monitor:
            return None
        facts["values"] = tuple(Value(step, value) for step, value in facts["values"])
        return cls(**facts)


@dataclass(frozen=True)
class Decision:
    """The decision from a history.

    `best` is None if no value is finite; `waited` counts the values without an improvement since.
    """

    best: Value | None
    waited: int
    stop: bool


def decide(history: History, rule: Rule) -> Decision:
    """Compare the values one after the other, as Keras's EarlyStopping does."""
    best: Value | None = None
    waited = 0
    for value in history.values:
        if rule.improves(value.value, None if best is None else best.value):
            best, waited = value, 0
        elif value.step > history.since:
            waited += 1
    return Decision(best, waited, rule.patience is not None and waited >= rule.patience)


def ranked(history: History, rule: Rule) -> list[Value]:
    """Return the finite values, the best one first, then the others from best to worst."""
    best = decide(history, rule).best
    sign = -1 if rule.larger_is_better else 1
    others = [value for value in history.values if math.isfinite(value.value) and value != best]
    return [*([best] if best else []), *sorted(others, key=lambda one: (sign * one.value, one.step))]


def explain(decision: Decision, rule: Rule) -> str:
    """Return why training ends early: `val_loss has not improved for 3 checkpoints; best 0.12 at step 60`."""
    unit = "checkpoint" if rule.monitor.startswith(VALIDATION) else "epoch"
    count = f"{decision.waited} {unit}{'' if decision.waited == 1 else 's'}"
    best = decision.best
    told = f"best {best.value:.4g} at step {best.step}" if best else "none of its values was a number"
    return f"{rule.monitor} has not improved for {count}; {told}"


def is_larger_better(mode: str, monitor: str, directions: Mapping[str, str]) -> bool:
    """Return whether larger values of a metric are better; `mode` is `min`, `max` or `auto`.

    `directions` are `up` or `down` by name, for Keras's metrics that have one. Raises InvalidConfiguration if
    `auto` finds none.
    """
    name = metric_of(monitor)
    if mode != "auto":
        return mode == "max"
    # With several outputs, the output's name precedes the metric's.
    if name.split("_")[-1] == "loss":
        return False
    for known in sorted(directions, key=len, reverse=True):
        if name == known or name.endswith(f"_{known}"):
            return directions[known] == "up"
    raise InvalidConfiguration(
        f"monitor: whether a larger {monitor} is a better one is not known; set mode to 'min' or 'max'"
    )


def metric_of(monitor: str) -> str:
    """Return the metric's name in the results of training and evaluation."""
    return monitor[len(VALIDATION) :] if monitor.startswith(VALIDATION) else monitor


def check_known(monitor: str, names: Sequence[str]) -> None:
    """Raise InvalidConfiguration for an unknown metric; the message lists the known ones.

    `names` are the compiled metrics that are single numbers, including `loss`.
    """
    if metric_of(monitor) not in names:
        trained = sorted(names, key=lambda name: (name != "loss", name))
        known = ", ".join([*trained, *(VALIDATION + name for name in trained)])
        raise InvalidConfiguration(f"monitor: the model has no metric {monitor!r}, only {known}")


# The monitored metric of a recipe, and the source of its values.


class Source(Enum):
    """The source of values."""

    TRAINING = "training"
    """The metrics of each epoch, reduced over all workers."""
    EVALUATOR = "evaluator"
    """The results that an evaluator writes during training."""
    HERE = "here"
    """This process, which trains alone, scores each checkpoint itself."""


@dataclass(frozen=True)
class Monitoring:
    """What decides about a training; with `keep_best`, the best checkpoint is kept and becomes the result."""

    rule: Rule
    keep_best: bool
    source: Source


def is_monitored(recipe: Recipe) -> bool:
    """Return whether values of a metric decide about the training."""
    return recipe.patience is not None or recipe.keep_best


def find_source(recipe: Recipe, replica: Replica, *, has_epochs: bool) -> Source:
    """Return the source of the recipe's metric, on a replica that trains.

    `has_epochs`: the training data ends. Raises InvalidConfiguration if no replica measures the metric.
    """
    task, monitor = replica.task, recipe.monitor
    if not monitor.startswith(VALIDATION):
        if not has_epochs:
            raise InvalidConfiguration(
                f"monitor: {monitor} is measured once an epoch, and train() is endless; monitor "
                f"{VALIDATION}{monitor}, which each checkpoint has"
            )
        return Source.TRAINING
    if task.cluster.get("evaluator"):
        return Source.EVALUATOR
    if not task.cluster:
        return Source.HERE
    if replica.environment.uid:  # a job lists its evaluator in TF_CONFIG
        raise InvalidConfiguration(
            f"monitor: {monitor} is measured by the evaluator, and this job has none; give it one "
            "(spec.evaluator.replicas: 1), or monitor a metric of the training, such as 'loss'"
        )
    if task.is_writer:
        announce(
            f"{monitor} is measured by an evaluator; TF_CONFIG lists none, so without one that writes into "
            f"{replica.environment.output_dir} training is never stopped early"
        )
    return Source.EVALUATOR


def build_monitoring(recipe: Recipe, source: Source, model: Any, names: Sequence[str]) -> Monitoring:
    """Return what the recipe monitors; `names` are the built model's metrics that are single numbers.

    Raises InvalidConfiguration if the metric or its direction is unknown.
    """
    check_known(recipe.monitor, names)
    larger = is_larger_better(recipe.mode, recipe.monitor, dict(_directions(model)))
    rule = Rule(recipe.monitor, larger, recipe.patience, recipe.min_delta)
    return Monitoring(rule, recipe.keep_best, source)


def _directions(model: Any) -> Iterator[tuple[str, str]]:
    """Yield the directions that Keras's metrics have as a private attribute; others need `mode`."""
    for metric in model.metrics:
        for one in getattr(metric, "metrics", [metric]):
            direction = getattr(one, "_direction", None)
            if direction in ("up", "down"):
                yield str(one.name), direction


EVALUATOR_PATIENCE = 600.0
"""Seconds without a sign of life from the evaluator that end the wait for the last checkpoint's score."""
POLL_SECONDS = 0.2


class Selection:
    """Selection without a metric: training runs to its end, and the last checkpoint is the result."""

    keeps_best = False
    """Whether any checkpoint may become the result."""

    def resume(self, saved: HostGroups, step: int) -> None:
        """Resume at `step` with the values that its checkpoint contains."""

    def epoch_ended(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record an epoch's metrics, reduced over all workers."""

    def look(self, step: int, settle: Callable[[], None]) -> None:
        """Record new scores; `settle` waits until no checkpoint is being written."""

    def score(self, step: int, settle: Callable[[], None]) -> None:
        """Score the checkpoint of `step` once it is in place, if this process has to score it."""

    def wants_checkpoint(self, step: int) -> bool:  # noqa: ARG002
        """Return whether `step` needs a checkpoint even if none is due."""
        return False

    def spared(self) -> frozenset[int]:
        """Return the steps of old checkpoints that must be kept."""
        return frozenset()

    def groups(self) -> HostGroups:
        """Return the groups that checkpoints contain for this selection."""
        return {}

    def is_over(self) -> bool:
        """Return whether training ends here; all workers call this at the same points."""
        return False

    def reason(self) -> str:
        """Return why training ends, for log and reports."""
        return ""

    def choose(self, last: int, may_wait: Callable[[], None]) -> int:  # noqa: ARG002
        """Return the step of the result checkpoint, on all workers; that of the `last` step is in place.

        `may_wait` is called during waits; it raises if the process has to end.
        """
        return last

    def put_back(self, groups: VariableGroups, step: int) -> HostGroups:
        """Load the chosen checkpoint on all workers; raises as `resume.load_agreed`."""
        raise NotImplementedError


class MonitoredSelection(Selection):
    """Selection by the values of one metric. The writer reads them and decides for all workers.

    `score` scores the checkpoint of a step in this process, with `Source.HERE`.
    """

    def __init__(
        self,
        replica: Replica,
        strategy: Any,
        monitoring: Monitoring,
        total_steps: int,
        score: Callable[[int], None] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._replica = replica
        self._strategy = strategy
        self._rule = monitoring.rule
        self.keeps_best = monitoring.keep_best
        self._source = monitoring.source
        self._total_steps = total_steps
        self._score = score
        self._clock = clock
        self._sleep = sleep
        self._scores = EvaluatorScores(replica.environment.output_dir / FOLDER)
        self._scoring: int | None = None
        self._history = self._begin(0)

    @property
    def decision(self) -> Decision:
        """The decision from the values so far; on the writer."""
        return decide(self._history, self._rule)

    def resume(self, saved: HostGroups, step: int) -> None:
        """Resume; more steps than before reset patience."""
        before = History.from_arrays(saved.get(MONITORED, ()), self._rule.monitor)
        self._history = before.asked_for(self._total_steps, step) if before else self._begin(step)
        self.look(step, _nothing)

    def epoch_ended(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metric, if it is one of the training."""
        if self._source is Source.TRAINING:
            self._history = self._history.with_value(step, metrics[self._rule.monitor])

    def look(self, step: int, settle: Callable[[], None]) -> None:
        """Read the evaluator's new results, on the writer alone.

        A result beyond `step` is of a lost checkpoint, and will come again.
        """
        if self._source is Source.TRAINING or not self._replica.task.is_writer:
            return
        if self.keeps_best:
            settle()  # no write drops checkpoints meanwhile, and the next one spares the best
        # In this order: a checkpoint that is no longer being scored has a result, which is read below.
        self._scoring = self._scores.scoring()
        scored, end = self._scores.read(self._history.read)
        history = replace(self._history, read=end)
        name = metric_of(self._rule.monitor)
        there = set(self._replica.store.steps()) if scored and self.keeps_best else set()
        for result in scored:
            is_kept = not self.keeps_best or result.step in there
            if result.step <= step and name in result.metrics and is_kept:
                history = history.with_value(result.step, result.metrics[name])
        self._history = history

    def score(self, step: int, settle: Callable[[], None]) -> None:
        """Score the checkpoint, unless an earlier start of the process has scored it."""
        if self._score is not None and not self._has_value(step):
            settle()
            self._score(step)
            self.look(step, _nothing)

    def wants_checkpoint(self, step: int) -> bool:
        """Return whether the epoch that has just ended is the best so far."""
        best = self.decision.best if self.keeps_best and self._source is Source.TRAINING else None
        return best is not None and best.step == step

    def spared(self) -> frozenset[int]:
        """Return the best step, and the one being scored, which may become the best."""
        if not self.keeps_best:
            return frozenset()
        best = self.decision.best
        steps = (best.step if best else None, self._scoring)
        return frozenset(step for step in steps if step is not None)

    def groups(self) -> HostGroups:
        """Return the values so far."""
        return {MONITORED: self._history.to_arrays()}

    def is_over(self) -> bool:
        """Return whether the writer has seen `patience` values without an improvement."""
        if self._rule.patience is None:
            return False
        return bool(broadcast(self._strategy, self._replica.task, [int(self.decision.stop)])[0])

    def reason(self) -> str:
        """Return why training ends, for log and reports."""
        return explain(self.decision, self._rule)

    def choose(self, last: int, may_wait: Callable[[], None]) -> int:
        """Return the best step whose checkpoint can be read; the last step if no value is finite."""
        if not self.keeps_best:
            return last
        chosen = last
        if self._source is Source.EVALUATOR:
            self._replica.progress.update(state="waiting")
        if self._replica.task.is_writer:
            self.score(last, _nothing)
            self._wait_for_score(last, may_wait)
            chosen = self._best_readable(last)
        (agreed,) = broadcast(self._strategy, self._replica.task, [chosen])
        self._replica.progress.update(state="saving")
        return agreed

    def put_back(self, groups: VariableGroups, step: int) -> HostGroups:
        """Load the chosen checkpoint on all workers."""
        task, store = self._replica.task, self._replica.store
        return load_agreed(self._strategy, task, store, step, {"model": groups["model"]}, groups)

    def _begin(self, step: int) -> History:
        # Results from before the first checkpoint belong to an earlier training.
        return History(
            self._rule.monitor, since=step, total_steps=self._total_steps, read=self._scores.size()
        )

    def _has_value(self, step: int) -> bool:
        return any(value.step == step for value in self._history.values)

    def _wait_for_score(self, last: int, may_wait: Callable[[], None]) -> None:
        """Wait for the evaluator, which is a step or two behind: the last checkpoint may be the best."""
        if self._source is not Source.EVALUATOR:
            return
        seen, since = self._scores.signs_of_life(), self._clock()
        while True:
            self.look(last, _nothing)
            if self._has_value(last):
                return
            may_wait()
            if self._scores.signs_of_life() != seen:
                seen, since = self._scores.signs_of_life(), self._clock()
            if self._clock() - since >= EVALUATOR_PATIENCE:
                notice(
                    f"no result for step {last}, and nothing from the evaluator for "
                    f"{EVALUATOR_PATIENCE / 60:.0f} minutes: the best one is chosen without it"
                )
                return
            self._sleep(POLL_SECONDS)

    def _best_readable(self, last: int) -> int:
        steps: Iterable[int] = (value.step for value in ranked(self._history, self._rule))
        return next((step for step in steps if step == last or self._is_readable(step)), last)

    def _is_readable(self, step: int) -> bool:
        try:
            self._replica.store.checked(step)
        except CheckpointUnreadable:
            notice(f"the checkpoint of step {step}, the best one, can't be read any more")
            return False
        return True


def _nothing() -> None:
    """Do nothing: no checkpoint is being written."""
