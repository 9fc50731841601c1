"""What a recipe asks to be monitored, and where its values come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from trainjob_trainer.early_stopping.stopping import VALIDATION, Rule, check_known, is_larger_better
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.recipe import Recipe
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.lines import announce


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
    """What decides about a training.

    Attributes:
        rule: how values are judged.
        keep_best: whether the best checkpoint is the one that is kept and handed over.
        source: where values come from.
    """

    rule: Rule
    keep_best: bool
    source: Source


def is_monitored(recipe: Recipe) -> bool:
    """Whether any value is to decide about the training."""
    return recipe.patience is not None or recipe.keep_best


def find_source(recipe: Recipe, replica: Replica, *, has_epochs: bool) -> Source:
    """Where the values of the recipe's metric come from.

    Args:
        recipe: that monitors something.
        replica: a training one.
        has_epochs: whether the training data ends.

    Raises:
        InvalidConfiguration: nobody would ever measure it.
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
    """Put together what the recipe says.

    Args:
        recipe: that monitors something.
        source: from `find_source`.
        model: compiled and built.
        names: of its metrics that are single numbers.

    Raises:
        InvalidConfiguration: there is no such metric, or its direction isn't known.
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
