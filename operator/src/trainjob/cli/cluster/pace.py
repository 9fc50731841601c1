"""How long to hold off before asking again, and until when to ask at all."""

import time
from collections.abc import Callable
from dataclasses import dataclass

_FIRST = 0.2
_MOST = 10.0


@dataclass(frozen=True)
class Pace:
    """Time, as it is measured and spent.

    Attributes:
        clock: seconds, from any beginning.
        pause: lets seconds pass.
        deadline: by the clock, or None.
    """

    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] = time.sleep
    deadline: float | None = None

    def within(self, seconds: float | None) -> "Pace":
        """Return the same pace with a deadline this far from now; None: none."""
        return Pace(self.clock, self.pause, None if seconds is None else self.clock() + seconds)

    @property
    def left(self) -> float:
        """Return the seconds until the deadline, infinity without one."""
        return float("inf") if self.deadline is None else self.deadline - self.clock()

    @property
    def is_over(self) -> bool:
        """Tell whether the deadline has passed."""
        return self.left <= 0

    def hold_off(self, failures: int, asked: float | None = None) -> None:
        """Let some time pass after this many failures in a row, but none beyond the deadline.

        Args:
            failures: from 1.
            asked: what the API server itself asks to wait.
        """
        self.pause(max(0.0, min(asked if asked is not None else backoff(failures), self.left)))


def backoff(failures: int) -> float:
    """Return the seconds to wait after this many failures in a row: twice as long each time, to 10."""
    return float(min(_MOST, _FIRST * 2 ** min(failures - 1, 16)))
