"""Figures of one replica for TensorBoard."""

from __future__ import annotations

import functools
import importlib.util
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainjob_trainer.errors import first_line
from trainjob_trainer.reporting.progress import announce

SECONDS_WITHOUT_FIGURES = 60.0
"""After an error nothing is written for so long: each try makes an event file."""


class Summaries:
    """Writes scalars below a folder; nothing without one, or without TensorBoard's package.

    The first value creates the event file. An error never ends training: a line says so, and figures are left
    out until they can be written again.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder if folder is not None and _has_tensorboard() else None
        self._writer: Any = None
        self._silent_until = -math.inf

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record values under the names that training and evaluation share."""

        def write() -> None:
            self._writer = self._writer or tf.summary.create_file_writer(str(self._folder))
            with self._writer.as_default(step=step):
                for name, value in scalars.items():
                    tf.summary.scalar(name, value)

        if scalars and self._folder is not None and time.monotonic() >= self._silent_until:
            self._try(write)

    def flush(self) -> None:
        """Write everything to the file system."""
        if self._writer is not None:
            self._try(self._writer.flush)

    def _try(self, write: Callable[[], object]) -> None:
        try:
            write()
        except (OSError, tf.errors.OpError) as error:
            self._writer = None
            self._silent_until = time.monotonic() + SECONDS_WITHOUT_FIGURES
            announce(f"metrics for TensorBoard can't be written to {self._folder}: {first_line(error)}")


@functools.lru_cache(maxsize=1)
def _has_tensorboard() -> bool:
    is_there = importlib.util.find_spec("tensorboard") is not None
    if not is_there:
        announce(
            "TensorBoard isn't installed, and TensorFlow no longer includes it: no metrics are written for "
            "TensorBoard. To have them, `pip install tensorboard` in the image"
        )
    return is_there
