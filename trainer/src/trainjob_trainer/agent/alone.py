"""Seats whose training process is started again alone, while the others go on.

With parameter servers the chief hands a dead worker's steps to another one, and takes a worker back in that
listens at the same address again. Nobody else can be missed like that: the variables lie on the `ps`, and the
chief knows what has been done.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainjob_trainer.agent.budget import EARLY_SECONDS, restart_delay
from trainjob_trainer.agent.messages import count_roles


class LoneSeats:
    """Those of one attempt, and what has become of them.

    Args:
        seats: that take part in the attempt.
        number: the attempt's.
        now: the time.
    """

    def __init__(self, seats: Iterable[str], number: int, now: float) -> None:
        """All have just been started."""
        self.seats = lone_seats(list(seats))
        self._numbers = dict.fromkeys(self.seats, number)
        self._started = dict.fromkeys(self.seats, now)
        self._in_a_row = dict.fromkeys(self.seats, 0)
        self._due: dict[str, float] = {}

    def __contains__(self, seat: object) -> bool:
        """Tell whether this seat is one of them."""
        return seat in self.seats

    def number(self, seat: str, otherwise: int) -> int:
        """Return the number of the latest start: above the attempt's once it was started alone."""
        return self._numbers.get(seat, otherwise)

    @property
    def latest(self) -> int:
        """Return the highest of these numbers, 0 for none."""
        return max(self._numbers.values(), default=0)

    @property
    def wake_at(self) -> float | None:
        """Return when the next of them is due."""
        return min(self._due.values(), default=None)

    def started(self, seat: str) -> float:
        """Return when it was started last."""
        return self._started[seat]

    def is_counted(self, seat: str) -> bool:
        """Tell whether the restart that it waits for has been counted."""
        return seat in self._due

    def is_due(self, seat: str, now: float) -> bool:
        """Tell whether it may be started."""
        return self._due.get(seat, now) <= now

    def failed(self, seat: str, now: float) -> None:
        """Note that it has failed, and is to be started again after 0, 1, 2, 4, ... s.

        One that has lasted for a minute begins this row anew.
        """
        lasted = now - self._started[seat]
        self._in_a_row[seat] = 1 if lasted >= EARLY_SECONDS else self._in_a_row[seat] + 1
        self._due[seat] = now + restart_delay(self._in_a_row[seat])

    def begin(self, seat: str, number: int, now: float) -> None:
        """Note that it is being started again."""
        self._due.pop(seat, None)
        self._numbers[seat], self._started[seat] = number, now


def lone_seats(seats: list[str]) -> frozenset[str]:
    """Return those of an attempt's seats that the others can do without for a while."""
    if not {"chief", "ps"} <= set(count_roles(seats)):
        return frozenset()
    return frozenset(seat for seat in seats if seat.startswith("worker-"))
