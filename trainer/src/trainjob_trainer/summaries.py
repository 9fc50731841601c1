"""TensorBoard scalars of one replica."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from trainjob_trainer.checkpoint.files import explain_write_error


class Summaries:
    """Scalars below a folder, or nowhere; the event file appears with the first one."""

    def __init__(self, folder: Path | None) -> None:
        """Write below `folder`; None writes nothing."""
        self._folder = folder
        self._writer: Any = None

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Record values under the names that training and evaluation share.

        Raises:
            OutputFull, OutputUnwritable: they can't be written.
        """
        if self._folder is not None:
            with _explained(self._folder):
                self._record(self._folder, step, scalars)

    def flush(self) -> None:
        """Hand everything to the file system.

        Raises:
            OutputFull, OutputUnwritable: it can't be written.
        """
        if self._folder is not None and self._writer is not None:
            with _explained(self._folder):
                self._writer.flush()

    def _record(self, folder: Path, step: int, scalars: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = tf.summary.create_file_writer(str(folder))
        with self._writer.as_default(step=step):
            for name, value in scalars.items():
                tf.summary.scalar(name, value)


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise explain_write_error(error, folder) or error from error
