"""The few file operations that checkpoints are made of, so that tests can cut them off anywhere."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from trainjob_trainer.errors import OutputFull, OutputUnwritable, TrainerError


class Files:
    """Durable writes: what `rename` has published survives a power cut, what it has not is ignored."""

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents; an existing one is fine."""
        path.mkdir(parents=True, exist_ok=True)

    def create_folder(self, path: Path) -> None:
        """Create a folder in one that is there.

        Raises:
            FileExistsError: it exists.
            FileNotFoundError: its parent doesn't.
        """
        path.mkdir()

    def names(self, path: Path) -> list[str]:
        """What is in a folder; nothing is in one that doesn't exist."""
        try:
            return [entry.name for entry in path.iterdir()]
        except FileNotFoundError:
            return []

    def write(self, path: Path, text: str) -> None:
        """Write a file in place, down to the disk."""
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def sync(self, path: Path) -> None:
        """Force a file or folder down to the disk."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Publish: atomic within one volume, replaces a file."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file or folder, if it is there."""
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def gone(folder: Path) -> OutputUnwritable:
    """What is wrong where a folder that was there has left, as one does whose volume is unmounted."""
    return OutputUnwritable(
        f"{folder} is gone: it has been deleted while this job was writing, or its volume isn't mounted "
        "any more"
    )


def explain_write_error(error: BaseException, path: Path) -> TrainerError | None:
    """Say what to do about a failed write; None when it is no matter of the disk.

    TensorFlow's file errors carry the system's own words in their message but no errno.
    """
    text = str(error)
    number = error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT) or "No space left" in text or "Disk quota" in text:
        return OutputFull(f"no space left for {path}: free some, or give the output a larger volume")
    if isinstance(error, OSError) or type(error).__module__.startswith("tensorflow"):
        why = error.strerror if isinstance(error, OSError) and error.strerror else text.partition("\n")[0]
        return OutputUnwritable(f"cannot write {path}: {why}")
    return None
