"""How long to wait after failures in a row, so that many clients don't come back at once."""

from __future__ import annotations

import random
from collections.abc import Callable

FIRST_SECONDS = 0.2
LONGEST_SECONDS = 30.0


class Backoff:
    """Doubles with each failure, up to a limit; each wait is a random part, at least half, of that.

    Args:
        first: seconds after the first failure, before the random part is taken.
        longest: the limit, in seconds.
        rand: returns a number from 0 to 1.
    """

    def __init__(
        self,
        first: float = FIRST_SECONDS,
        longest: float = LONGEST_SECONDS,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self._first = first
        self._longest = longest
        self._rand = rand
        self._failures = 0

    @property
    def failures(self) -> int:
        """How many there have been in a row."""
        return self._failures

    def next(self, asked: float | None = None) -> float:
        """Count a failure and return the seconds to wait, no fewer than the server asked for."""
        limit = min(self._longest, self._first * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return max(limit * (0.5 + self._rand() / 2), asked or 0.0)

    def reset(self) -> None:
        """Forget the failures: something went well."""
        self._failures = 0
