"""Figures of one replica for TensorBoard, and for W&B where it is enabled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from trainjob_trainer.checkpoint.files import explain_write_error

if TYPE_CHECKING:
    import numpy as np

    from trainjob_trainer.reporting.wandb_run import WandbRun


class Summaries:
    """Writes scalars and histograms below a folder, and to W&B if given; without a folder, nothing.

    The first value creates the event file. Every method raises OutputFull or OutputUnwritable if it can't
    write.
    """

    def __init__(self, folder: Path | None, also: WandbRun | None = None) -> None:
        self._folder = folder
        self._also = also if folder is not None else None
        self._writer: Any = None

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record values under the names that training and evaluation share."""
        if self._folder is not None:
            with _explained(self._folder), self._opened(self._folder).as_default(step=step):
                for name, value in scalars.items():
                    tf.summary.scalar(name, value)
        if self._also is not None:
            self._also.log(step, scalars)

    def write_histogram(self, step: int, name: str, values: np.ndarray[Any, Any]) -> None:
        """Record the distribution of values; an empty array is not recorded."""
        if not len(values) or self._folder is None:
            return
        with _explained(self._folder), self._opened(self._folder).as_default(step=step):
            tf.summary.histogram(name, values)
        if self._also is not None:
            self._also.log_histogram(step, name, values)

    def flush(self) -> None:
        """Write everything to the file system."""
        if self._folder is not None and self._writer is not None:
            with _explained(self._folder):
                self._writer.flush()

    def close(self) -> None:
        """Flush, and end the W&B run: no more values will come."""
        self.flush()
        if self._also is not None:
            self._also.finish()

    def _opened(self, folder: Path) -> Any:
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(folder))
        return self._writer


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise explain_write_error(error, folder) or error from error
