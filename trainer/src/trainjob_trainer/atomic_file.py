"""Small files that others read at any moment: they see the old text or the new one, never a part."""

from __future__ import annotations

import os
from pathlib import Path

TEMPORARY = ".tmp-"
"""Prefix of what is not there yet, or not any more."""


def temporary_of(path: Path) -> Path:
    """Where the next text of a file lies until it is whole."""
    return path.with_name(TEMPORARY + path.name)


def write_atomically(path: Path, text: str) -> None:
    """Replace a file by one with this text; the only one who writes it does so, and follows no link.

    It is not forced down to the disk: a power cut may bring the old text back. Raises OSError if the folder
    is missing, or can't be written.
    """
    temporary = temporary_of(path)
    temporary.unlink(missing_ok=True)
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
    )
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)
