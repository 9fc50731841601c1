"""The evaluator: scores each new checkpoint, the final one for certain, and keeps the results."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import keras
import tensorflow as tf

from trainjob_trainer.atomic_file import write_atomically
from trainjob_trainer.checkpoint.files import explain_write_error
from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore, FinalMarker
from trainjob_trainer.data.batches import TrainingData
from trainjob_trainer.engine.metric_state import scalars
from trainjob_trainer.errors import CheckpointUnavailable, CheckpointUnreadable, InvalidConfiguration
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.progress import ProgressFile, announce, plain_number
from trainjob_trainer.reporting.summaries import Summaries

if TYPE_CHECKING:
    from trainjob_trainer.reporting.wandb_run import WandbRun

# What the evaluator leaves in its folder for the training: its results, and what it is scoring now.


FOLDER = "evaluator"
RESULTS = "evaluations.jsonl"
SCORING = "scoring.json"


class Scored(NamedTuple):
    """A result: the checkpoint's step and its metrics by name."""

    step: int
    metrics: Mapping[str, float]


class EvaluatorScores:
    """The evaluator's folder, which need not exist, as the training sees it: read, and never written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def size(self) -> int:
        """Bytes of results that there are."""
        with contextlib.suppress(OSError):
            return (self._folder / RESULTS).stat().st_size
        return 0

    def read(self, begin: int) -> tuple[list[Scored], int]:
        """Return the results from this byte on, and where they end; a line under way is left for later.

        A file that is shorter by now is another one, and read from its beginning.
        """
        begin = begin if begin <= self.size() else 0
        try:
            with (self._folder / RESULTS).open("rb") as file:
                file.seek(begin)
                data = file.read()
        except OSError:
            return [], begin
        whole = data[: data.rfind(b"\n") + 1]
        return list(_parsed(whole)), begin + len(whole)

    def signs_of_life(self) -> tuple[int, int]:
        """Something that changes while the evaluator gets on: with each result, and about twice a minute."""
        with contextlib.suppress(OSError):
            return self.size(), (self._folder / SCORING).stat().st_mtime_ns
        return self.size(), 0

    def scoring(self) -> int | None:
        """The step of the checkpoint that is being scored, or was last."""
        try:
            return int(json.loads((self._folder / SCORING).read_text(encoding="utf-8"))["step"])
        except (OSError, ValueError, KeyError, TypeError):
            return None


def touch_scoring(folder: Path) -> None:
    """Show, as the evaluator, that a long evaluation gets on."""
    with contextlib.suppress(OSError):
        os.utime(folder / SCORING)


def tell_scoring(folder: Path, step: int) -> None:
    """Say, as the evaluator, which checkpoint is being scored: it stays until the next one is.

    The folder is there, by `ResultsFile`. Raises OutputFull or OutputUnwritable if it can't be written.
    """
    path = folder / SCORING
    try:
        write_atomically(path, json.dumps({"step": step}))
    except OSError as error:
        raise explain_write_error(error, path) or error from error


def _parsed(lines: bytes) -> Iterator[Scored]:
    for line in lines.splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            entry: Any = json.loads(line)
            # NaN and infinities, which JSON lacks, are written as text.
            yield Scored(int(entry["step"]), {str(k): float(v) for k, v in entry["metrics"].items()})


# What an evaluator does with a folder of checkpoints: each new one once, and the final one for certain.


T = TypeVar("T")


def _ignore(line: str) -> None:
    """Nobody reads a log."""


def follow(
    store: CheckpointStore,
    poll_seconds: float,
    *,
    job_uid: str | None = None,
    final_step: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
    log: Callable[[str], None] = _ignore,
) -> Iterator[tuple[Checkpoint, bool]]:
    """Yield (checkpoint, is_final), newest first when several have appeared, until the final one.

    A checkpoint that was yielded before it became the final one is yielded again, now as final. The end of an
    earlier training has been scored by its own evaluator: it is passed over while its marker stands. That is
    another job's marker, unless `job_uid` is None, and one of a training that was to end before `final_step`.
    A folder that can't be read is looked at again, with a line in the log when that begins and when it ends.
    """
    seen: Checkpoint | None = None
    while True:
        look = functools.partial(_look, store, seen, job_uid, final_step)
        final, newest = once_available(look, poll_seconds, sleep=sleep, log=log)
        if final is not None:
            yield final, True
            return
        if newest is not None:
            seen = newest
            yield newest, False
            continue  # evaluating took its time: look again at once
        sleep(poll_seconds)


def once_available(
    read: Callable[[], T],
    poll_seconds: float,
    *,
    sleep: Callable[[float], None] = time.sleep,
    log: Callable[[str], None] = _ignore,
) -> T:
    """Try again for as long as the folder can't be read: who only reads does no harm by waiting."""
    is_out = False
    while True:
        try:
            result = read()
        except CheckpointUnavailable as error:
            if not is_out:
                log(f"{error}; this process tries again every {poll_seconds:g} s")
            is_out = True
        else:
            if is_out:
                log("the checkpoints can be read again")
            return result
        sleep(poll_seconds)


def _look(
    store: CheckpointStore, seen: Checkpoint | None, job_uid: str | None, final_step: int | None
) -> tuple[Checkpoint | None, Checkpoint | None]:
    """The final checkpoint, or else the newest unseen one."""
    try:
        marker = store.final()
    except CheckpointUnreadable as error:
        raise CheckpointUnavailable(str(error)) from error  # its writer may put it right
    final = _final_checkpoint(store, marker, job_uid, final_step)
    return final, None if final is not None else _newest_unseen(store, marker, seen)


def _final_checkpoint(
    store: CheckpointStore, marker: FinalMarker | None, job_uid: str | None, final_step: int | None
) -> Checkpoint | None:
    if marker is None or (job_uid is not None and marker.job_uid != job_uid):
        return None
    if final_step is not None and marker.total_steps < final_step:
        return None
    try:
        return store.checked(marker.step)
    except CheckpointUnreadable:
        return None  # the marker may be on its way out, with training going on


def _newest_unseen(
    store: CheckpointStore, marker: FinalMarker | None, seen: Checkpoint | None
) -> Checkpoint | None:
    """Looks at manifests only until one is new: reading a large checkpoint on every poll would cost."""
    steps = store.steps()
    if not steps or (marker is not None and steps[-1] <= marker.ended_at):
        return None  # training goes on from a marker once its writer has taken it away, if it does at all
    try:
        newest = store.at(steps[-1])
    except CheckpointUnreadable:
        return _unless_seen(store.latest(), seen)
    return _unless_seen(newest, seen) and _unless_seen(store.latest(), seen)


def _unless_seen(checkpoint: Checkpoint | None, seen: Checkpoint | None) -> Checkpoint | None:
    return None if checkpoint == seen else checkpoint


# Scores of a Keras model on held-out data, every example counted once.


_SECONDS_BETWEEN_SIGNS = 30.0


class BatchesTold(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """Reports how far an evaluation has come: one that stands still can be told from one that is long."""

    def __init__(self, progress: ProgressFile, folder: Path | None = None) -> None:
        """Report there, and to a training that waits for the result by the evaluator's folder, if given."""
        super().__init__()
        self._progress = progress
        self._folder = folder
        self._touched_at = time.monotonic()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras, with the batch's number from 0."""
        self._progress.update(evaluated_batches=batch + 1)
        now = time.monotonic()
        if self._folder is not None and now - self._touched_at >= _SECONDS_BETWEEN_SIGNS:
            self._touched_at = now
            touch_scoring(self._folder)


class KerasScoring:
    """A compiled model on one device with its held-out batches.

    On one device the last batch may be smaller than the others, so nothing is padded and nothing is dropped.
    Raises InvalidConfiguration if the data is endless; `name` is that of the function that it comes from.
    """

    def __init__(self, model: Any, name: str, data: TrainingData, batch: int, replica: Replica) -> None:
        if data.examples is None:
            raise InvalidConfiguration(f"{name}() is endless: evaluation needs a data set that ends")
        self._model = model
        # Keras warns of data that ends where TensorFlow doesn't know by itself how much there is.
        counted = data.dataset.apply(tf.data.experimental.assert_cardinality(data.examples))
        self._batches = counted.batch(batch).prefetch(tf.data.AUTOTUNE)
        self._store = replica.store
        self._told = BatchesTold(replica.progress, replica.environment.output_dir)

    def score(self, checkpoint: Checkpoint) -> Mapping[str, float]:
        """Load the checkpoint's weights and evaluate; raises as `CheckpointStore.load`."""
        self._store.load(checkpoint, {"model": self._model.variables})
        metrics = self._model.evaluate(self._batches, verbose=0, return_dict=True, callbacks=[self._told])
        return scalars(metrics)


POLL_SECONDS = 0.5

Score = Callable[[Checkpoint], Mapping[str, float]]
"""Load a checkpoint and measure it. Raises CheckpointUnreadable when it is gone."""


@dataclass(frozen=True)
class Evaluation:
    """A checkpoint's result: metrics by name, over all held-out examples; `final` if it is the training's."""

    step: int
    metrics: Mapping[str, float]
    final: bool

    def to_json(self) -> dict[str, Any]:
        """The form of the results file and of progress reports."""
        return {"step": self.step, "metrics": plain_number(self.metrics), "final": self.final}


class ResultsFile:
    """Results below one folder: TensorBoard scalars, and `evaluations.jsonl`: a step's last line counts."""

    def __init__(
        self, folder: Path, log_dir: Path, now: Callable[[], float] = time.time, also: WandbRun | None = None
    ) -> None:
        self._path = folder / RESULTS
        self._summaries = Summaries(log_dir, also)
        self._now = now
        self._is_made = False

    def make_folder(self) -> None:
        """Make the folder, once: on a volume unmounted later nothing is begun anew. Raises as `add`."""
        if self._is_made:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise explain_write_error(error, self._path.parent) or error from error
        self._is_made = True

    def add(self, evaluation: Evaluation) -> None:
        """Keep a result; raises OutputFull or OutputUnwritable if it can't be written."""
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
    """Evaluate until the final checkpoint has been scored, and return its result.

    SIGTERM ends the process at once, from a thread of its own. `final_step` is what the training is to reach,
    where it is known; a marker of one that was to reach less is an earlier one's. `score_final` adds what
    only the final checkpoint is measured by.
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

    Returns a function of the checkpoint's step, which keeps the result where an evaluator's would be.
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
