"""The evaluator: it scores new checkpoints, always including the final one, and keeps the results."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from trainjob_trainer.checkpoint.files import Patience
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore, FinalMarker
from trainjob_trainer.contract.files import EVALUATIONS
from trainjob_trainer.contract.reports import as_json
from trainjob_trainer.errors import CheckpointUnreadable
from trainjob_trainer.identity import Identity, Trainings, followed, has_other_rows
from trainjob_trainer.reporting.progress import ProgressFile, announce, notice
from trainjob_trainer.reporting.summaries import Summaries

if TYPE_CHECKING:
    from trainjob_trainer.session import PlainProcess

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
                "the evaluator holds out other rows than worker 0, so it may score rows that were trained "
                "on: split the data by a seed of your own, such as np.random.default_rng(0)"
            )
        if training is not None or is_first:
            return training.number if training else 1
        time.sleep(POLL_SECONDS)


def follow(
    store: CheckpointStore,
    poll_seconds: float,
    *,
    markers: Sequence[Callable[[], FinalMarker | None]] = (),
    job_uid: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[tuple[Checkpoint, bool]]:
    """Yield (checkpoint, is_final) until the final one; the newest if several have appeared.

    `markers` return what says that there will be no further one, by default `store.final`; if it names none
    of this store, the newest is final. Without any checkpoint nothing is yielded then.

    A checkpoint that was yielded before it became the final one is yielded again as final. The end of
    another job's training has been scored by its own evaluator, and is skipped while its marker exists; with
    `job_uid` None every marker counts.
    """
    seen: Checkpoint | None = None
    while True:
        is_over, newest = _look(store, markers or [store.final], seen, job_uid)
        if is_over:
            if newest is not None:
                yield newest, True
            return
        if newest is not None:
            seen = newest
            yield newest, False
            continue  # evaluation took time: look again at once
        sleep(poll_seconds)


def _look(
    store: CheckpointStore,
    markers: Sequence[Callable[[], FinalMarker | None]],
    seen: Checkpoint | None,
    job_uid: str | None,
) -> tuple[bool, Checkpoint | None]:
    """Return whether training is over, with its final checkpoint; else the newest unseen one."""
    try:
        found = [each for each in (marker() for marker in markers) if each is not None]
    except CheckpointUnreadable:
        return False, None  # its writer may repair it
    marker = next((each for each in found if job_uid is None or each.job_uid == job_uid), None)
    if marker is None:
        return False, _newest_unseen(store, found[0] if found else None, seen)
    if marker.step not in store.steps():
        return True, store.latest()
    try:
        return True, store.checked(marker.step)
    except CheckpointUnreadable:
        return False, None  # training may continue and be about to remove the marker


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


@dataclass(frozen=True)
class Evaluation:
    """A checkpoint's result: metrics by name, over all held-out examples; `final` for the final one."""

    step: int
    metrics: Mapping[str, float]
    final: bool

    def to_json(self) -> dict[str, Any]:
        """Return the form of the results file and of progress reports."""
        return {"step": self.step, "metrics": as_json(self.metrics), "final": self.final}


class ResultsFile:
    """Results below one folder: TensorBoard scalars, and `evaluations.jsonl` (a step's last line counts)."""

    def __init__(self, folder: Path, log_dir: Path, now: Callable[[], float] = time.time) -> None:
        self._path = folder / EVALUATIONS
        self._summaries = Summaries(log_dir)
        self._now = now
        self._patience = Patience()
        self._is_made = False

    def make_folder(self) -> None:
        """Make the folder only once: it must not be made again below an unmounted volume. Raises as `add`."""
        if not self._is_made:
            self._patience.write(lambda: self._path.parent.mkdir(parents=True, exist_ok=True), self._path)
            self._is_made = True

    def add(self, evaluation: Evaluation) -> None:
        """Append a result; wait while the storage is full or away, and raise OutputUnwritable otherwise."""
        self.make_folder()
        text = json.dumps({**evaluation.to_json(), "time": self._now()}) + "\n"

        def append() -> None:
            nonlocal text
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
                text = "\n" + text.lstrip()  # what fails may leave a part of the line
                file.flush()
                os.fsync(file.fileno())

        self._patience.write(append, self._path)
        self._patience.was_writable = True
        self._summaries.write(evaluation.step, evaluation.metrics)
        self._summaries.flush()


def evaluate_checkpoints(
    process: PlainProcess,
    store: CheckpointStore,
    score: Score,
    *,
    markers: Sequence[Callable[[], FinalMarker | None]] = (),
) -> None:
    """Evaluate a store's checkpoints until the final one has been scored; `markers` as in `follow`.

    SIGTERM ends the process at once, from a separate thread.
    """
    environment, progress = process.environment, process.progress
    results = ResultsFile(environment.output_dir, environment.log_dir)
    results.make_folder()
    progress.update(state="waiting")
    scored: tuple[Checkpoint, Mapping[str, float]] | None = None
    for checkpoint, is_final in follow(store, POLL_SECONDS, markers=markers, job_uid=environment.uid or None):
        progress.update(state="evaluating", step=checkpoint.step, evaluated_batches=None)
        if scored is None or scored[0] != checkpoint:
            try:
                scored = checkpoint, score(checkpoint)
            except CheckpointUnreadable:
                if is_final:
                    raise
                continue  # removed meanwhile, as the oldest
        evaluation = Evaluation(checkpoint.step, scored[1], is_final)
        results.add(evaluation)
        progress.update(
            step=evaluation.step,
            checkpoint_step=evaluation.step,
            evaluated_batches=None,
            evaluation=evaluation.to_json(),
        )
        shown = ", ".join(f"{name} {float(value):.4f}" for name, value in evaluation.metrics.items())
        announce(f"evaluated step {evaluation.step}{' (final)' if is_final else ''}: {shown}")
        progress.update(state="waiting")
    progress.update(state="finished")
    progress.flush()
