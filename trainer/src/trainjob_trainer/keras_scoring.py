"""Scores of a Keras model on held-out data, every example counted once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.metrics import scalars
from trainjob_trainer.progress import ProgressFile


class BatchesTold(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """Reports how far an evaluation has come: one that stands still can be told from one that is long."""

    def __init__(self, progress: ProgressFile) -> None:
        """Report there."""
        super().__init__()
        self._progress = progress

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Called by Keras, with the batch's number from 0."""
        self._progress.update(evaluated_batches=batch + 1)


class KerasScoring:
    """A compiled model on one device with its held-out batches.

    On one device the last batch may be smaller than the others, so nothing is padded and nothing is dropped.
    """

    def __init__(
        self, model: Any, heldout: Any, batch: int, store: CheckpointStore, progress: ProgressFile
    ) -> None:
        """Score `model` on `heldout`, unbatched examples, taken `batch` at a time.

        Raises:
            InvalidConfiguration: the held-out data is endless.
        """
        if int(heldout.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise InvalidConfiguration("heldout() is endless: evaluation needs a data set that ends")
        self._model = model
        self._batches = heldout.batch(batch).prefetch(tf.data.AUTOTUNE)
        self._store = store
        self._told = BatchesTold(progress)

    def score(self, checkpoint: Checkpoint) -> Mapping[str, float]:
        """Load the checkpoint's weights and evaluate.

        Raises:
            CheckpointUnreadable, CheckpointMismatch: as `CheckpointStore.load`.
        """
        self._store.load(checkpoint, {"model": self._model.variables})
        return self.measure()

    def measure(self) -> Mapping[str, float]:
        """Evaluate the weights as they are."""
        metrics = self._model.evaluate(self._batches, verbose=0, return_dict=True, callbacks=[self._told])
        return scalars(metrics)
