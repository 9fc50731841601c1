"""Scores of a Keras model on held-out data, every example counted once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from trainjob_trainer.checkpoint.store import Checkpoint, CheckpointStore
from trainjob_trainer.errors import InvalidConfiguration
from trainjob_trainer.metrics import scalars


class KerasScoring:
    """A compiled model on one device with its held-out batches.

    On one device the last batch may be smaller than the others, so nothing is padded and nothing is dropped.
    """

    def __init__(self, model: Any, heldout: Any, batch: int, store: CheckpointStore) -> None:
        """Score `model` on `heldout`, unbatched examples, taken `batch` at a time.

        Raises:
            InvalidConfiguration: the held-out data is endless.
        """
        if int(heldout.cardinality()) == tf.data.INFINITE_CARDINALITY:
            raise InvalidConfiguration("heldout() is endless: evaluation needs a data set that ends")
        self._model = model
        self._batches = heldout.batch(batch).prefetch(tf.data.AUTOTUNE)
        self._store = store

    def score(self, checkpoint: Checkpoint) -> Mapping[str, float]:
        """Load the checkpoint's weights and evaluate.

        Raises:
            CheckpointUnreadable, CheckpointMismatch: as `CheckpointStore.load`.
        """
        self._store.load(checkpoint, {"model": self._model.variables})
        return self.measure()

    def measure(self) -> Mapping[str, float]:
        """Evaluate the weights as they are."""
        metrics = self._model.evaluate(self._batches, verbose=0, return_dict=True)
        return scalars(metrics)
