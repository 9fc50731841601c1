"""What a call of many batches is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Stretch:
    """What Keras's loop passes on as the iterator.

    Attributes:
        iterator: the data.
        count: how many batches the call is to take.
        is_seen: whether a callback looks at the figures, so that they are to be those of all workers.
    """

    iterator: Any
    count: int
    is_seen: bool = False

    def __iter__(self) -> Stretch:
        """Return itself: Keras reads a first batch for the shapes."""
        return self

    def __next__(self) -> Any:
        """Return a batch."""
        return next(self.iterator)
