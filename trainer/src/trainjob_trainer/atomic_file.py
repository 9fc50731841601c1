"""Small files that others may read at any time: readers see the old text or the new one, never a part."""

from __future__ import annotations

import os
from pathlib import Path

TEMPORARY = ".tmp-"
"""Prefix of files that are not complete yet, or are being removed."""


def version_of(path: Path) -> tuple[int, ...] | None:
    """Return by what a file that was replaced is known to be another one; None without a file. One `stat`."""
    try:
        stat = os.stat(path)  # noqa: PTH116 - several times a second for days
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


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
