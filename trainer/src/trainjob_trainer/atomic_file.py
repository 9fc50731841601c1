"""Small files that others may read at any time: readers see the old text or the new one, never a part."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import IO

from trainjob_trainer.contract.files import APPENDING

TEMPORARY = ".tmp-"
"""Prefix of files that are not complete yet, or are being removed."""


def version_of(path: Path) -> tuple[int, ...] | None:
    """Return by what a file that was replaced is known to be another one; None without a file. One `stat`."""
    try:
        found = os.stat(path)  # noqa: PTH116 - several times a second for days
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def open_appending(path: Path) -> IO[str]:
    """Open a regular file to append to it, without following a link: a folder from somebody may have one.

    Raises OSError if it can't be written, or is anything else.
    """
    descriptor = os.open(path, APPENDING, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "a", encoding="utf-8")


def write_atomically(path: Path, text: str) -> None:
    """Replace a file by one with this text, without following links; each file has only one writer.

    There is no fsync: a power cut may restore the old text. Raises OSError if the folder is missing or can't
    be written.
    """
    temporary = path.with_name(TEMPORARY + path.name)
    temporary.unlink(missing_ok=True)
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
    )
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)
