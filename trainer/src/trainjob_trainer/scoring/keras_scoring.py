"""Scores of a Keras model on held-out data, every example counted once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer.checkpoint.store import Checkpoint
from trainjob_trainer.data.batches import TrainingData
from trainjob_trainer.engine.metrics import scalars
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.replica import Replica
from trainjob_trainer.reporting.progress import ProgressFile
from trainjob_trainer.scoring.scores import touch_scoring

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
    """

    def __init__(self, model: Any, name: str, data: TrainingData, batch: int, replica: Replica) -> None:
        """Score on some data.

        Args:
            model: to load the checkpoints into.
            name: of the function that the data comes from.
            data: to be taken `batch` examples at a time.
            batch: how many.
            replica: whose checkpoints, and who reports.

        Raises:
            InvalidConfiguration: the data is endless.
        """
        if data.examples is None:
            raise InvalidConfiguration(f"{name}() is endless: evaluation needs a data set that ends")
        self._model = model
        # Keras warns of data that ends where TensorFlow doesn't know by itself how much there is.
        counted = data.dataset.apply(tf.data.experimental.assert_cardinality(data.examples))
        self._batches = counted.batch(batch).prefetch(tf.data.AUTOTUNE)
        self._store = replica.store
        self._told = BatchesTold(replica.progress, replica.environment.output_dir)

    def score(self, checkpoint: Checkpoint) -> Mapping[str, float]:
        """Load the checkpoint's weights and evaluate.

        Raises:
            CheckpointUnreadable, CheckpointMismatch: as `CheckpointStore.load`.
        """
        self._store.load(checkpoint, {"model": self._model.variables})
        metrics = self._model.evaluate(self._batches, verbose=0, return_dict=True, callbacks=[self._told])
        return scalars(metrics)
