"""How the workers share the training data, in a sentence for the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainjob_trainer.data.turns import are_nearly_equal
from trainjob_trainer.plan import TrainingPlan


@dataclass(frozen=True)
class Policy:
    """What is read, by whom, and in which order.

    Attributes:
        workers: how many share the data.
        sizes: examples of each part, or of all as one; None where they are endless.
        takes_part: whether train() is called for a part.
        shuffles: whether the order is the library's.
        window: how many examples are shuffled together; None where it is all that are read in one go.
        cache: where they are kept.
    """

    workers: int
    sizes: Sequence[int] | None
    takes_part: bool
    shuffles: bool
    window: int | None
    cache: str | None

    def sentence(self, plan: TrainingPlan) -> str:
        """All of it."""
        clauses = [self._amount(plan), self._share(), self._order(), self._kept()]
        return "training data: " + "; ".join(clause for clause in clauses if clause)

    def _amount(self, plan: TrainingPlan) -> str:
        if self.sizes is None:
            return f"endless, {plan.global_batch:,} examples a step"
        steps = f"{plan.epoch_steps:,} steps of {plan.global_batch:,} an epoch"
        return f"{sum(self.sizes):,} examples, {steps}"

    def _share(self) -> str:
        if self.workers == 1:
            return ""
        is_one_part = self.sizes is not None and len(self.sizes) < self.workers
        if not self.takes_part or is_one_part:
            return f"each of {self.workers} workers reads all of it and takes one example in {self.workers}"
        if self.sizes is None or are_nearly_equal(self.sizes):
            return f"each of {self.workers} workers reads a part of its own"
        return (
            f"the parts hold {min(self.sizes):,} to {max(self.sizes):,} examples, so each of {self.workers} "
            "workers reads all of them in turn, and every example comes equally often"
        )

    def _order(self) -> str:
        if not self.shuffles or self.sizes is None:
            return "in the order of train()"
        return "shuffled anew each epoch" + (f", {self.window:,} at a time" if self.window else "")

    def _kept(self) -> str:
        return "" if self.cache is None else f"kept in {self.cache} once read"
