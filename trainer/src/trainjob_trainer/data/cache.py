"""Examples that are kept once they have been read, so that later epochs neither read nor parse them again."""

from __future__ import annotations

import shutil
from pathlib import Path

from trainjob_trainer.data.batches import TrainingData
from trainjob_trainer.errors import InvalidConfiguration

IN_MEMORY = "memory"


class Cache:
    """Where this process keeps examples: in memory, or in files."""

    def __init__(self, folder: Path | None = None) -> None:
        """Keep them below a folder of this process's own, or in memory without one."""
        self._folder = folder

    @classmethod
    def of(cls, where: str | None, replica: str, *, reads_here: bool = True) -> Cache | None:
        """The cache that a recipe asks for.

        What an earlier start left there is removed: it may be half of the data, or have been other data.

        Args:
            where: `memory`, a folder of this machine, or None.
            replica: a name that nobody else on this machine has.
            reads_here: whether this process reads the examples, and not workers that it hands out steps to.

        Raises:
            InvalidConfiguration: the folder can't be written, or others read.
        """
        if where is None:
            return None
        if where == IN_MEMORY:
            return cls()
        if not reads_here:
            raise InvalidConfiguration(
                f"cache: {where} would be one folder for all workers, who read the examples themselves where "
                f"there are parameter servers; use cache={IN_MEMORY!r}"
            )
        folder = Path(where) / replica
        try:
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir(parents=True)
        except OSError as error:
            raise InvalidConfiguration(f"cache: {folder} can't be written: {error.strerror}") from error
        return cls(folder)

    def keep(self, data: TrainingData, number: int) -> TrainingData:
        """The same examples; `number` tells them from others of this process."""
        path = "" if self._folder is None else str(self._folder / f"examples-{number}")
        return TrainingData(data.dataset.cache(path), data.examples)
