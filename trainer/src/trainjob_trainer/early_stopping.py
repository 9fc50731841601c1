"""The choice of the result checkpoint of a training, and early stopping: the same on all workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from trainjob_trainer.checkpoint.snapshot import HostGroups, NamedArray, VariableGroups, json_group, read_json
from trainjob_trainer.distribution.collective import broadcast
from trainjob_trainer.errors import CheckpointUnreadable, InvalidConfiguration
from trainjob_trainer.recipe import Recipe
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.progress import notice
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
    """How values are compared, and what follows; without a `monitor` nothing does.

    `patience` values without an improvement end the training, None never ends it; an improvement is larger
    than `min_delta`. With `keep_best` the best checkpoint is kept and becomes the result.
    """

    monitor: str = ""
    larger_is_better: bool = False
    patience: int | None = None
    min_delta: float = 0.0
    keep_best: bool = False

    @property
    def is_heldout(self) -> bool:
        """Whether held-out examples are measured, at each checkpoint; else training, in each epoch."""
        return self.monitor.startswith(VALIDATION)

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
    """

    monitor: str
    values: tuple[Value, ...] = ()
    since: int = 0
    total_steps: int = 0

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
        facts.pop("read", None)  # of earlier versions
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
    unit = "checkpoint" if rule.is_heldout else "epoch"
    count = f"{decision.waited} {unit}{'' if decision.waited == 1 else 's'}"
    best = decision.best
    told = f"best {best.value:.4g} at step {best.step}" if best else "none of its values was a number"
    return f"{rule.monitor} has not improved for {count}; {told}"


def is_larger_better(mode: str, monitor: str, directions: Mapping[str, str]) -> bool:
    """Return whether larger values of a metric are better; `mode` is `min`, `max` or `auto`.

    `directions` are `up` or `down` by name, for Keras's metrics that have one. Raises InvalidConfiguration if
    `auto` finds none.
    """
    if mode != "auto":
        return mode == "max"
    name = monitor.removeprefix(VALIDATION)
    # With several outputs, the output's name precedes the metric's.
    if name.split("_")[-1] == "loss":
        return False
    for known in sorted(directions, key=len, reverse=True):
        if name == known or name.endswith(f"_{known}"):
            return directions[known] == "up"
    raise InvalidConfiguration(
        f"monitor: whether a larger {monitor} is a better one is not known; set mode to 'min' or 'max'"
    )


def check_known(monitor: str, names: Sequence[str]) -> None:
    """Raise InvalidConfiguration for an unknown metric; the message lists the known ones.

    `names` are the compiled metrics that are single numbers, including `loss`.
    """
    if monitor.removeprefix(VALIDATION) not in names:
        trained = sorted(names, key=lambda name: (name != "loss", name))
        known = ", ".join([*trained, *(VALIDATION + name for name in trained)])
        raise InvalidConfiguration(f"monitor: the model has no metric {monitor!r}, only {known}")


def is_monitored(recipe: Recipe) -> bool:
    """Return whether values of a metric decide about the training."""
    return recipe.patience is not None or recipe.keep_best


def build_rule(recipe: Recipe, model: Any, names: Sequence[str]) -> Rule:
    """Return the recipe's rule; `names` are the built model's metrics that are single numbers.

    Raises InvalidConfiguration if the metric or its direction is unknown.
    """
    check_known(recipe.monitor, names)
    larger = is_larger_better(recipe.mode, recipe.monitor, dict(_directions(model)))
    return Rule(recipe.monitor, larger, recipe.patience, recipe.min_delta, recipe.keep_best)


def _directions(model: Any) -> Iterator[tuple[str, str]]:
    """Yield the directions that Keras's metrics have as a private attribute; others need `mode`."""
    for metric in model.metrics:
        for one in getattr(metric, "metrics", [metric]):
            direction = getattr(one, "_direction", None)
            if direction in ("up", "down"):
                yield str(one.name), direction


class Selection:
    """The values of a training, and what follows from them. The writer has them and decides for all workers.

    `score` returns the metrics of the present weights on held-out examples, on the writer. Without a rule
    training runs to its end, and the last checkpoint is the result.
    """

    def __init__(
        self,
        replica: Replica,
        strategy: Any,
        rule: Rule = Rule(),
        total_steps: int = 0,
        score: Callable[[int], Mapping[str, float]] | None = None,
    ) -> None:
        self._replica = replica
        self._strategy = strategy
        self.rule = rule
        self._total_steps = total_steps
        self._score = score
        self.scores = score is not None
        self._history = History(rule.monitor, total_steps=total_steps)

    @property
    def decision(self) -> Decision:
        """The decision from the values so far; on the writer."""
        return decide(self._history, self.rule)

    def resume(self, saved: HostGroups, step: int) -> None:
        """Resume at `step` with the values in its checkpoint; more steps than before reset patience."""
        before = History.from_arrays(saved.get(MONITORED, ()), self.rule.monitor)
        if before is None:
            before = replace(self._history, since=step)
        self._history = before.asked_for(self._total_steps, step)

    def epoch_ended(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record an epoch's metrics, reduced over all workers."""
        if self.rule.monitor and not self.rule.is_heldout:
            self._history = self._history.with_value(step, metrics[self.rule.monitor])

    def score(self, step: int) -> None:
        """Score the weights after `step`, if this process has to and hasn't yet.

        Their checkpoint is in place, so a request to stop needn't wait for the score.
        """
        if self._score is None or any(value.step == step for value in self._history.values):
            return
        stop = self._replica.stop
        patience, stop.patience_seconds = stop.patience_seconds, 0.0
        try:
            metrics = self._score(step)
        finally:
            stop.patience_seconds = patience
        self._history = self._history.with_value(step, metrics[self.rule.monitor.removeprefix(VALIDATION)])

    def spared(self) -> frozenset[int]:
        """Return the steps that need a checkpoint, even if none is due, and keep it: the best one."""
        best = self.decision.best if self.rule.keep_best else None
        return frozenset() if best is None else frozenset({best.step})

    def groups(self) -> HostGroups:
        """Return the groups that checkpoints contain: the values so far."""
        return {MONITORED: self._history.to_arrays()} if self.rule.monitor else {}

    def is_over(self) -> bool:
        """Return whether training ends here; all workers call this at the same points."""
        if self.rule.patience is None:
            return False
        return bool(broadcast(self._strategy, self._replica.task, [int(self.decision.stop)])[0])

    def choose(self, last: int) -> int:
        """Return the step of the result checkpoint, on all workers; that of the `last` step is in place.

        It is the best one that can be read; the last one if no value is finite.
        """
        if not self.rule.keep_best:
            return last
        chosen = last
        if self._replica.task.is_writer:
            self.score(last)
            steps: Iterable[int] = (value.step for value in ranked(self._history, self.rule))
            chosen = next((step for step in steps if step == last or self._is_readable(step)), last)
        return broadcast(self._strategy, self._replica.task, [chosen])[0]

    def put_back(self, groups: VariableGroups, step: int) -> HostGroups:
        """Load the chosen checkpoint on all workers; raises as `resume.load_agreed`."""
        task, store = self._replica.task, self._replica.store
        return load_agreed(self._strategy, task, store, step, {"model": groups["model"]}, groups)

    def _is_readable(self, step: int) -> bool:
        try:
            self._replica.store.checked(step)
        except CheckpointUnreadable:
            notice(f"the checkpoint of step {step}, the best one, can't be read any more")
            return False
        return True
