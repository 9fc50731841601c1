"""The last words of a container: a file that whatever runs in it may write."""

import os
import stat
from pathlib import Path

LARGEST_MESSAGE = 4096
"""Bytes; of a longer file the end is kept, as a kubelet does."""


def read_termination_log(path: Path) -> str:
    """Return what is written there; nothing if that is no file (any more)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return ""
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return ""
        text = os.pread(fd, LARGEST_MESSAGE, max(0, status.st_size - LARGEST_MESSAGE))
    except OSError:
        return ""
    finally:
        os.close(fd)
    return text.decode("utf-8", "ignore").strip()
