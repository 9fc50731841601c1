"""The agent's own few lines among those of the training process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def log(text: str) -> None:
    """Print one line on stderr."""
    print(f"trainjob: agent: {text}", file=sys.stderr, flush=True)


class Seldom:
    """Prints at most one line in so many seconds, whoever keeps knocking.

    Args:
        seconds: the least time between two lines.
        clock: replaced by tests.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """The first line is printed at once."""
        self._seconds = seconds
        self._clock = clock
        self._next = clock()

    def log(self, text: str) -> None:
        """Print the line, or drop it."""
        if self._clock() >= self._next:
            self._next = self._clock() + self._seconds
            log(text)
