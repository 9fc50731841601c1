"""One at a time: locks that end with the process that holds them, however it ends."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testbed.progress import say


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Holds an exclusive lock on a file, and waits for its present holder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that holds {file}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
