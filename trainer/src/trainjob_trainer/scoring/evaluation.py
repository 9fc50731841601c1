"""The evaluator: scores each new checkpoint, the final one for certain, and keeps the results."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainjob_trainer.checkpoint.files import explain_write_error
from trainjob_trainer.checkpoint.follow import follow, once_available
from trainjob_trainer.checkpoint.store import Checkpoint
from trainjob_trainer.errors import CheckpointUnreadable
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.lines import announce
from trainjob_trainer.reporting.progress import plain_number
from trainjob_trainer.reporting.summaries import Summaries
from trainjob_trainer.scoring.scores import RESULTS, tell_scoring

if TYPE_CHECKING:
    from trainjob_trainer.reporting.wandb_run import WandbRun

POLL_SECONDS = 0.5

Score = Callable[[Checkpoint], Mapping[str, float]]
"""Load a checkpoint and measure it. Raises CheckpointUnreadable when it is gone."""


@dataclass(frozen=True)
class Evaluation:
    """One result.

    Attributes:
        step: the checkpoint's.
        metrics: by name, over all held-out examples.
        final: whether it is the training's result.
    """

    step: int
    metrics: Mapping[str, float]
    final: bool

    def to_json(self) -> dict[str, Any]:
        """The form of the results file and of progress reports."""
        return {"step": self.step, "metrics": plain_number(self.metrics), "final": self.final}


class ResultsFile:
    """Results below one folder: a JSON line each, and TensorBoard scalars."""

    def __init__(
        self, folder: Path, log_dir: Path, now: Callable[[], float] = time.time, also: WandbRun | None = None
    ) -> None:
        """Append to `<folder>/evaluations.jsonl`; the last line about a step is the one that counts."""
        self._path = folder / RESULTS
        self._summaries = Summaries(log_dir, also)
        self._now = now
        self._is_made = False

    def make_folder(self) -> None:
        """Make the folder, once: on a volume that is unmounted later nothing is begun anew.

        Raises:
            OutputFull, OutputUnwritable: it can't be made.
        """
        if self._is_made:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain_write_error(error, self._path.parent) or error from error
        self._is_made = True

    def add(self, evaluation: Evaluation) -> None:
        """Keep a result.

        Raises:
            OutputFull, OutputUnwritable: it can't be written.
        """
        self.make_folder()
        line = json.dumps({**evaluation.to_json(), "time": self._now()})
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
            self._summaries.write(evaluation.step, evaluation.metrics)
            self._summaries.flush()
        except Exception as error:
            raise explain_write_error(error, self._path) or error from error

    def close(self) -> None:
        """Nothing is added any more."""
        self._summaries.close()


def evaluate_checkpoints(
    replica: Replica, score: Score, *, final_step: int | None, score_final: Score | None = None
) -> Evaluation | None:
    """Evaluate until the final checkpoint has been scored.

    Args:
        replica: this process. SIGTERM ends it at once, from a thread of its own.
        score: loads and measures.
        final_step: what the training is to reach, where it is known; a marker of one that was to reach less
            is an earlier one's.
        score_final: measures what only the final checkpoint is measured by.

    Returns:
        The final result.
    """
    environment = replica.environment
    results = ResultsFile(environment.output_dir, environment.log_dir, also=replica.journal)
    results.make_folder()
    replica.progress.update(state="waiting")
    scored: tuple[Checkpoint, Mapping[str, float]] | None = None
    last: Evaluation | None = None
    checkpoints = follow(
        replica.store,
        POLL_SECONDS,
        job_uid=replica.environment.uid or None,
        final_step=None if replica.environment.uid else final_step,
        log=announce,
    )
    for checkpoint, is_final in checkpoints:
        replica.progress.update(state="evaluating", step=checkpoint.step, evaluated_batches=None)
        if scored is None or scored[0] != checkpoint:
            tell_scoring(replica.environment.output_dir, checkpoint.step)
            try:
                told = once_available(functools.partial(score, checkpoint), POLL_SECONDS, log=announce)
                scored = checkpoint, told
            except CheckpointUnreadable:
                if is_final:
                    raise
                continue  # dropped meanwhile, as the oldest
        further = score_final(checkpoint) if is_final and score_final is not None else {}
        last = Evaluation(checkpoint.step, {**scored[1], **further}, is_final)
        publish(replica, results, last)
    results.close()
    replica.progress.update(state="finished")
    replica.progress.flush()
    return last


def score_here(replica: Replica, score: Score) -> Callable[[int], None]:
    """What a process that trains alone does at a checkpoint whose result decides about the training.

    Args:
        replica: this process, as an evaluator.
        score: loads and measures.

    Returns:
        A function of the checkpoint's step, which keeps the result where an evaluator's would be.
    """
    results = ResultsFile(replica.environment.output_dir, replica.environment.log_dir)

    def score_step(step: int) -> None:
        replica.progress.update(state="evaluating")
        publish(replica, results, Evaluation(step, score(replica.store.at(step)), final=False))
        replica.progress.update(state="training")

    return score_step


def publish(replica: Replica, results: ResultsFile, evaluation: Evaluation) -> None:
    """Keep a result, and tell of it as the evaluator."""
    results.add(evaluation)
    replica.progress.update(
        state="finished" if evaluation.final else "waiting",
        step=evaluation.step,
        checkpoint_step=evaluation.step,
        evaluated_batches=None,
        evaluation=evaluation.to_json(),
    )
    announce_evaluation(evaluation)


def announce_evaluation(evaluation: Evaluation) -> None:
    """One line for the log."""
    shown = ", ".join(f"{name} {float(value):.4f}" for name, value in evaluation.metrics.items())
    announce(f"evaluated step {evaluation.step}{' (final)' if evaluation.final else ''}: {shown}")
