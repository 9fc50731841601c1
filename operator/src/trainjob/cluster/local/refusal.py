"""What this machine cannot do for a job, in sentences for its author."""

from collections.abc import Iterable


class CannotRunHere(Exception):
    """The job asks for something that a laptop has no counterpart of.

    Attributes:
        lines: one sentence each: what is asked for, and what to do about it.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("; ".join(self.lines))
