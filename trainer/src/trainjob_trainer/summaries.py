"""TensorBoard scalars of one replica."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf


class Summaries:
    """Scalars below a folder, or nowhere; the event file appears with the first one."""

    def __init__(self, folder: Path | None) -> None:
        """Write below `folder`; None writes nothing."""
        self._folder = folder
        self._writer: Any = None

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record values under the names that training and evaluation share."""
        if self._folder is None:
            return
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(self._folder))
        with self._writer.as_default(step=step):
            for name, value in scalars.items():
                tf.summary.scalar(name, value)

    def flush(self) -> None:
        """Hand everything to the file system."""
        if self._writer is not None:
            self._writer.flush()
