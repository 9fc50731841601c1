"""The evaluator: it scores new checkpoints, always including the final one, and keeps the results."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from trainjob_trainer.atomic_file import open_appending
from trainjob_trainer.checkpoint.files import Patience
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore, FinalMarker
from trainjob_trainer.contract.files import EVALUATIONS
from trainjob_trainer.contract.reports import as_json
from trainjob_trainer.errors import CheckpointUnreadable
from trainjob_trainer.identity import Identity, Trainings, followed, has_other_rows
from trainjob_trainer.reporting.progress import ProgressFile, announce, notice
from trainjob_trainer.reporting.summaries import Summaries

if TYPE_CHECKING:
    from trainjob_trainer.session import Session

# The checkpoints to score: each new one once, and always the final one.


POLL_SECONDS = 0.5


def wait_for_training(trainings: Trainings, call: Identity) -> int:
    """Return the number of the training that a call of the evaluator's follows, once it has begun.

    It is the training of the same call; the first one where it has no name, as without a job, or if the job
    has finished without that call. A notice says whether the two hold out other rows.
    """
    while True:
        found = trainings.read()
        is_first = trainings.root.final() is not None or not (found or not trainings.root.steps())
        training = followed(found, call)
        if training is not None and has_other_rows(call, training.identity):
            notice(
                "the evaluator's held-out rows differ from worker 0's, so it may score rows that were "
                "trained on: split the data with a fixed seed, such as np.random.default_rng(0)"
            )
        if training is not None or is_first:
            return training.number if training else 1
        time.sleep(POLL_SECONDS)


def follow(
    store: CheckpointStore,
    poll_seconds: float,
    *,
    final: Callable[[], FinalMarker | None] | None = None,
    job_uid: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[Checkpoint, bool]]:
    """Yield (checkpoint, is_final) until the final one; the newest if several have appeared.

    `final` returns what says that there will be no further one, by default `store.final`; if it names none
    of this store, the newest is final. Without any checkpoint nothing is yielded then.

    A checkpoint that was yielded before it became the final one is yielded again as final. The end of
    another job's training has been scored by its own evaluator, and is skipped while its marker exists; with
    `job_uid` None every marker counts.
    """
    seen: Checkpoint | None = None
    while True:
        newest = None
        with contextlib.suppress(CheckpointUnreadable):  # its writer may repair it, or be about to remove it
            marker = (final or store.final)()
            if marker is not None and job_uid in (None, marker.job_uid):
                last = store.checked(marker.step) if marker.step in store.steps() else store.latest()
                if last is not None:
                    yield last, True
                return
            newest = _newest_unseen(store, marker, seen)
        if newest is None:
            sleep(poll_seconds)
        else:
            seen = newest
            yield newest, False  # evaluation takes time: then it looks again at once


def _newest_unseen(
    store: CheckpointStore, marker: FinalMarker | None, seen: Checkpoint | None
) -> Checkpoint | None:
    """Return the newest unseen checkpoint; only a new manifest makes it read a checkpoint as a whole."""
    steps = store.steps()
    if not steps or (marker is not None and steps[-1] <= marker.ended_at):
        return None  # a training that continues removes the marker first
    with contextlib.suppress(CheckpointUnreadable):
        if store.at(steps[-1]) == seen:
            return None
    newest = store.latest()
    return None if newest == seen else newest


# Progress of evaluations, and their results.


class Scoring(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """Reports the progress of evaluations and predictions, which may take longer than a step."""

    async_safe = True

    def __init__(self, progress: ProgressFile) -> None:
        super().__init__()
        self._progress = progress
        self._before = progress.last.state

    def on_test_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras, also as `on_predict_begin`."""
        self._before = self._progress.last.state
        self._progress.update(state="evaluating", evaluated_batches=None)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras, also as `on_predict_batch_end`, with the last batch's number, from 0."""
        self._progress.update(evaluated_batches=batch + 1)

    def on_test_end(self, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras, also as `on_predict_end`."""
        self._progress.update(state=self._before, evaluated_batches=None)

    on_predict_begin, on_predict_batch_end, on_predict_end = on_test_begin, on_test_batch_end, on_test_end


Score = Callable[[Checkpoint], Mapping[str, float]]
"""Loads a checkpoint and returns its metrics. Raises CheckpointUnreadable if it is gone."""


def evaluate_checkpoints(session: Session, store: CheckpointStore, score: Score) -> None:
    """Evaluate a store's checkpoints until the job's final one has been scored.

    Results are TensorBoard scalars, progress reports, and lines of `evaluations.jsonl`, of which a step's
    last one counts. While the storage is full or away it waits; SIGTERM ends the process at once, from a
    separate thread. Raises OutputUnwritable.
    """
    environment, progress, patience = session.environment, session.progress, Patience()
    path, summaries = environment.output_dir / EVALUATIONS, Summaries(environment.log_dir)
    # Only once: it must not be made again below an unmounted volume.
    patience.write(lambda: path.parent.mkdir(parents=True, exist_ok=True), path)
    progress.update(state="waiting")
    scored: tuple[Checkpoint, Mapping[str, float]] | None = None
    final, uid = session.trainings.root.final, environment.uid or None
    for checkpoint, is_final in follow(store, POLL_SECONDS, final=final, job_uid=uid):
        step = checkpoint.step
        progress.update(state="evaluating", step=step, evaluated_batches=None)
        if scored is None or scored[0] != checkpoint:
            try:
                scored = checkpoint, score(checkpoint)
            except CheckpointUnreadable:
                if is_final:
                    raise
                continue  # removed meanwhile, as the oldest
        metrics = scored[1]
        evaluation = {"step": step, "metrics": as_json(metrics), "final": is_final}
        lines = [json.dumps({**evaluation, "time": time.time()}) + "\n"]
        patience.write(functools.partial(_append, path, lines), path)
        patience.was_writable = True
        summaries.write(step, metrics)
        summaries.flush()
        progress.update(step=step, checkpoint_step=step, evaluated_batches=None, evaluation=evaluation)
        shown = ", ".join(f"{name} {float(value):.4f}" for name, value in metrics.items())
        announce(f"evaluated step {step}{' (final)' if is_final else ''}: {shown}")
        progress.update(state="waiting")
    progress.update(state="finished")
    progress.flush()


def _append(path: Path, lines: list[str]) -> None:
    """Append the first of the lines; what fails may leave a part of it, so the next try begins a new one."""
    with open_appending(path) as file:
        file.write(lines[0])
        lines[0] = "\n" + lines[0].lstrip()
        file.flush()
        os.fsync(file.fileno())
