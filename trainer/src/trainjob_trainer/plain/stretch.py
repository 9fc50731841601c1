"""What a call of many batches is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Stretch:
    """What Keras's loop passes on as the iterator: the data, and how many batches the call is to take."""

    iterator: Any
    count: int

    def __iter__(self) -> Stretch:
        """Return itself: Keras reads a first batch for the shapes."""
        return self

    def __next__(self) -> Any:
        """Return a batch."""
        return next(self.iterator)
