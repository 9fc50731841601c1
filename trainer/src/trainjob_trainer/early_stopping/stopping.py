"""Which of the values seen so far is the best, and whether training is to end: decided from them alone.

The values are kept in each checkpoint, so that a run that was cut off decides as one that was not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from trainjob_trainer.checkpoint.snapshot import NamedArray, json_group, read_json
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.recipe import Recipe
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.progress import announce

MONITORED = "monitored"
"""Group of a checkpoint: the values of the monitored metric that were known when it was written."""
VALIDATION = "val_"
"""Prefix of metrics on held-out examples, as in Keras's logs."""


class Value(NamedTuple):
    """A metric's value with the weights after so many steps; it may be NaN."""

    step: int
    value: float


@dataclass(frozen=True)
class Rule:
    """How values are judged.

    `patience` values without an improvement end the training, None never ends it; `min_delta` is what a value
    has to be better by.
    """

    monitor: str
    larger_is_better: bool = False
    patience: int | None = None
    min_delta: float = 0.0

    def improves(self, value: float, best: float | None) -> bool:
        """Whether a value is the new best one; one that is not finite never is."""
        if not math.isfinite(value):
            return False
        if best is None:
            return True
        gain = value - best if self.larger_is_better else best - value
        return gain > self.min_delta


@dataclass(frozen=True)
class History:
    """What has been seen.

    Attributes:
        values: in the order of their steps, one a step.
        since: patience counts the values after this step.
        total_steps: what the training was asked to reach when they were seen.
        read: bytes of the evaluator's results that have been read.
    """

    monitor: str
    values: tuple[Value, ...] = ()
    since: int = 0
    total_steps: int = 0
    read: int = 0

    def with_value(self, step: int, value: float) -> History:
        """Add a value; a second one of a step, or one of an earlier step, changes nothing."""
        if self.values and step <= self.values[-1].step:
            return self
        return replace(self, values=(*self.values, Value(step, value)))

    def asked_for(self, total_steps: int, step: int) -> History:
        """Go on at `step` to `total_steps`: with more than before, patience begins anew."""
        is_more = bool(self.total_steps) and total_steps > self.total_steps
        return replace(self, total_steps=total_steps, since=step if is_more else self.since)

    def to_arrays(self) -> list[NamedArray]:
        """As a group of a checkpoint: JSON in bytes."""
        return json_group("history", asdict(self))

    @classmethod
    def from_arrays(cls, group: Sequence[NamedArray], monitor: str) -> History | None:
        """Read it back; None if there is none, or if it is another metric's."""
        if not group:
            return None
        facts = read_json(group)
        if facts["monitor"] != monitor:
            return None
        facts["values"] = tuple(Value(step, value) for step, value in facts["values"])
        return cls(**facts)


@dataclass(frozen=True)
class Decision:
    """What follows from a history.

    `best` is None as long as no value was a number; `waited` counts the values since, none an improvement.
    """

    best: Value | None
    waited: int
    stop: bool


def decide(history: History, rule: Rule) -> Decision:
    """Look at the values one after the other, as Keras's EarlyStopping does."""
    best: Value | None = None
    waited = 0
    for value in history.values:
        if rule.improves(value.value, None if best is None else best.value):
            best, waited = value, 0
        elif value.step > history.since:
            waited += 1
    return Decision(best, waited, rule.patience is not None and waited >= rule.patience)


def ranked(history: History, rule: Rule) -> list[Value]:
    """The values that are numbers, the best one first; the others by what they are worth."""
    best = decide(history, rule).best
    sign = -1 if rule.larger_is_better else 1
    others = [value for value in history.values if math.isfinite(value.value) and value != best]
    return [*([best] if best else []), *sorted(others, key=lambda one: (sign * one.value, one.step))]


def explain(decision: Decision, rule: Rule) -> str:
    """Why training ends early: `val_loss has not improved for 3 checkpoints; best 0.12 at step 60`."""
    unit = "checkpoint" if rule.monitor.startswith(VALIDATION) else "epoch"
    count = f"{decision.waited} {unit}{'' if decision.waited == 1 else 's'}"
    best = decision.best
    told = f"best {best.value:.4g} at step {best.step}" if best else "none of its values was a number"
    return f"{rule.monitor} has not improved for {count}; {told}"


def is_larger_better(mode: str, monitor: str, directions: Mapping[str, str]) -> bool:
    """The direction of a metric; `mode` is `min`, `max` or `auto`.

    `directions` are `up` or `down` by name, of Keras's metrics that have one. Raises InvalidConfiguration if
    `auto` finds none.
    """
    name = metric_of(monitor)
    if mode != "auto":
        return mode == "max"
    # With several outputs a metric's name follows that of its output.
    if name.split("_")[-1] == "loss":
        return False
    for known in sorted(directions, key=len, reverse=True):
        if name == known or name.endswith(f"_{known}"):
            return directions[known] == "up"
    raise InvalidConfiguration(
        f"monitor: whether a larger {monitor} is a better one is not known; set mode to 'min' or 'max'"
    )


def metric_of(monitor: str) -> str:
    """The metric's name in the results of training and evaluation."""
    return monitor[len(VALIDATION) :] if monitor.startswith(VALIDATION) else monitor


def check_known(monitor: str, names: Sequence[str]) -> None:
    """Raise InvalidConfiguration for a metric that doesn't exist, listing those that there are.

    `names` are those of the compiled metrics that are single numbers, `loss` among them.
    """
    if metric_of(monitor) not in names:
        trained = sorted(names, key=lambda name: (name != "loss", name))
        known = ", ".join([*trained, *(VALIDATION + name for name in trained)])
        raise InvalidConfiguration(f"monitor: the model has no metric {monitor!r}, only {known}")


# What a recipe asks to be monitored, and where its values come from.


class Source(Enum):
    """Where values come from."""

    TRAINING = "training"
    """Each epoch's own, reduced over all workers."""
    EVALUATOR = "evaluator"
    """The results that an evaluator writes meanwhile."""
    HERE = "here"
    """This process scores each checkpoint itself: it is alone."""


@dataclass(frozen=True)
class Monitoring:
    """What decides about a training; `keep_best`: the best checkpoint is kept and handed over."""

    rule: Rule
    keep_best: bool
    source: Source


def is_monitored(recipe: Recipe) -> bool:
    """Whether any value is to decide about the training."""
    return recipe.patience is not None or recipe.keep_best


def find_source(recipe: Recipe, replica: Replica, *, has_epochs: bool) -> Source:
    """Where the values of the recipe's metric come from, on a replica that trains.

    `has_epochs`: the training data ends. Raises InvalidConfiguration if nobody would ever measure the metric.
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
    if replica.environment.uid:  # whoever sets it lists the evaluator too
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
    """Put together what the recipe says; `names` are the built model's metrics that are single numbers.

    Raises InvalidConfiguration if there is no such metric, or its direction isn't known.
    """
    check_known(recipe.monitor, names)
    larger = is_larger_better(recipe.mode, recipe.monitor, dict(_directions(model)))
    rule = Rule(recipe.monitor, larger, recipe.patience, recipe.min_delta)
    return Monitoring(rule, recipe.keep_best, source)


def _directions(model: Any) -> Iterator[tuple[str, str]]:
    """Keras's metrics know theirs, but have no public name for it; one without is asked for by `mode`."""
    for metric in model.metrics:
        for one in getattr(metric, "metrics", [metric]):
            direction = getattr(one, "_direction", None)
            if direction in ("up", "down"):
                yield str(one.name), direction
