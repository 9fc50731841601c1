"""Figures of one replica for TensorBoard, and for W&B where it is enabled."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from trainjob_trainer.checkpoint.files import explain_write_error
from trainjob_trainer.reporting.progress import announce

if TYPE_CHECKING:
    import numpy as np

    from trainjob_trainer.reporting.wandb_run import WandbRun


class Summaries:
    """Writes scalars and histograms below a folder, and to W&B if given; without a folder, nothing.

    Without the package TensorBoard, which TensorFlow needs to write them, W&B alone gets them.

    The first value creates the event file. Every method raises OutputFull or OutputUnwritable if it can't
    write.
    """

    def __init__(self, folder: Path | None, also: WandbRun | None = None) -> None:
        self._folder = folder if folder is not None and _has_tensorboard() else None
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
        if not len(values):
            return
        if self._folder is not None:
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


@functools.lru_cache(maxsize=1)
def _has_tensorboard() -> bool:
    is_there = importlib.util.find_spec("tensorboard") is not None
    if not is_there:
        announce(
            "TensorBoard isn't installed, and TensorFlow no longer brings it: no figures are written for it. "
            "`pip install tensorboard` in the image adds them"
        )
    return is_there


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise explain_write_error(error, folder) or error from error
