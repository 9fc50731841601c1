"""Which checkpoint a training hands over, and whether it ends early: the same on all workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from trainjob_trainer.checkpoint.snapshot import HostGroups, VariableGroups
from trainjob_trainer.distribution.collective import broadcast
from trainjob_trainer.early_stopping.stopping import (
    MONITORED,
    Decision,
    History,
    Monitoring,
    Source,
    decide,
    explain,
    metric_of,
    ranked,
)
from trainjob_trainer.errors import CheckpointUnreadable
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.progress import announce
from trainjob_trainer.resume import load_agreed
from trainjob_trainer.scoring.scores import FOLDER, EvaluatorScores

EVALUATOR_PATIENCE = 600.0
"""Seconds without any sign of an evaluator after which the last checkpoint's score isn't waited for."""
POLL_SECONDS = 0.2


class Selection:
    """Without a metric that decides: training goes to its end, and the last checkpoint is handed over."""

    def resume(self, saved: HostGroups, step: int) -> None:
        """Go on at `step` with what the run that wrote its checkpoint had seen."""

    def epoch_ended(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take note of an epoch's metrics, reduced over all workers."""

    def look(self, step: int, settle: Callable[[], None]) -> None:
        """Take note of what has been scored by now; `settle` waits until no checkpoint is being written."""

    def score(self, step: int, settle: Callable[[], None]) -> None:
        """Have the checkpoint of `step` scored, once it is in place, if that is this process's to do."""

    def wants_checkpoint(self, step: int) -> bool:  # noqa: ARG002
        """Whether `step` is to have a checkpoint, also where none is due."""
        return False

    def spared(self) -> frozenset[int]:
        """Steps of checkpoints that are not to be dropped for being old."""
        return frozenset()

    def groups(self) -> HostGroups:
        """What a checkpoint is to hold of this."""
        return {}

    def is_over(self) -> bool:
        """Whether training ends here; all workers ask at the same points."""
        return False

    def reason(self) -> str:
        """Why it does."""
        return ""

    def choose(self, last: int, may_wait: Callable[[], None]) -> int:  # noqa: ARG002
        """The step of the checkpoint to hand over, on all workers; that of `last`, the end, is in place.

        `may_wait` is called while something is waited for; it raises if the process is to end.
        """
        return last

    def put_back(self, groups: VariableGroups, step: int) -> HostGroups:
        """Load the chosen checkpoint on all workers; raises as `resume.load_agreed`."""
        raise NotImplementedError


class MonitoredSelection(Selection):
    """By the values of one metric. The writer sees them and decides; the others hear what it says.

    `score` scores the checkpoint of a step in this process, where the source says so.
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
        self._keep_best = monitoring.keep_best
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
        """What follows from what has been seen; on the writer."""
        return decide(self._history, self._rule)

    def resume(self, saved: HostGroups, step: int) -> None:
        """Go on, with patience anew if more steps are asked for than before."""
        before = History.from_arrays(saved.get(MONITORED, ()), self._rule.monitor)
        self._history = before.asked_for(self._total_steps, step) if before else self._begin(step)
        self.look(step, _nothing)

    def epoch_ended(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take note of the metric, if it is one of the training's own."""
        if self._source is Source.TRAINING:
            self._history = self._history.with_value(step, metrics[self._rule.monitor])

    def look(self, step: int, settle: Callable[[], None]) -> None:
        """Read on in the evaluator's results; the writer alone does.

        A result from beyond `step` is of a checkpoint that was lost, and comes again.
        """
        if self._source is Source.TRAINING or not self._replica.task.is_writer:
            return
        if self._keep_best:
            settle()  # a checkpoint that is there now stays: it is among those to be spared
        # In this order: what is no longer being scored by now has a result that is read below.
        self._scoring = self._scores.scoring()
        scored, end = self._scores.read(self._history.read)
        history = replace(self._history, read=end)
        name = metric_of(self._rule.monitor)
        there = set(self._replica.store.steps()) if scored and self._keep_best else set()
        for result in scored:
            is_kept = not self._keep_best or result.step in there
            if result.step <= step and name in result.metrics and is_kept:
                history = history.with_value(result.step, result.metrics[name])
        self._history = history

    def score(self, step: int, settle: Callable[[], None]) -> None:
        """Score it, unless that has been done before the process was started again."""
        if self._score is not None and not self._has_value(step):
            settle()
            self._score(step)
            self.look(step, _nothing)

    def wants_checkpoint(self, step: int) -> bool:
        """Whether the epoch that has just ended is the best so far."""
        best = self.decision.best if self._keep_best and self._source is Source.TRAINING else None
        return best is not None and best.step == step

    def spared(self) -> frozenset[int]:
        """The best one, and the one that may turn out to be."""
        if not self._keep_best:
            return frozenset()
        best = self.decision.best
        steps = (best.step if best else None, self._scoring)
        return frozenset(step for step in steps if step is not None)

    def groups(self) -> HostGroups:
        """The values."""
        return {MONITORED: self._history.to_arrays()}

    def is_over(self) -> bool:
        """Whether the writer has seen enough values without an improvement."""
        if self._rule.patience is None:
            return False
        return bool(broadcast(self._strategy, self._replica.task, [int(self.decision.stop)])[0])

    def reason(self) -> str:
        """In words, for log and reports."""
        return explain(self.decision, self._rule)

    def choose(self, last: int, may_wait: Callable[[], None]) -> int:
        """The best one that can be read; the last one where no value is a number."""
        if not self._keep_best:
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
        """Load the best one."""
        task, store = self._replica.task, self._replica.store
        return load_agreed(self._strategy, task, store, step, {"model": groups["model"]}, groups)

    def _begin(self, step: int) -> History:
        # Results that are there before the first checkpoint is are an earlier training's.
        return History(
            self._rule.monitor, since=step, total_steps=self._total_steps, read=self._scores.size()
        )

    def _has_value(self, step: int) -> bool:
        return any(value.step == step for value in self._history.values)

    def _wait_for_score(self, last: int, may_wait: Callable[[], None]) -> None:
        """An evaluator is a step or two behind, and what it hasn't scored yet may be the best."""
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
                announce(
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
            announce(f"the checkpoint of step {step}, the best one, can't be read any more")
            return False
        return True


def _nothing() -> None:
    """No checkpoint is being written."""
