"""Which start of the job this process belongs to: what a successor is told apart by."""

from __future__ import annotations

import re
from dataclasses import dataclass

from trainjob_trainer.errors import InvalidConfiguration

VARIABLE = "TRAINJOB_EPOCH"
_TEXT = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})", re.ASCII)


@dataclass(frozen=True, order=True)
class Epoch:
    """Compared as a pair: the writer's pod first, then the starts within it.

    Attributes:
        incarnation: of the writer's pod, one more than its predecessor's.
        attempt: how many times the gang has been started.
    """

    incarnation: int
    attempt: int

    @classmethod
    def parse(cls, text: str) -> Epoch:
        """Read `<incarnation>.<attempt>`.

        Raises:
            InvalidConfiguration: it is something else.
        """
        found = _TEXT.fullmatch(text)
        if found is None:
            raise InvalidConfiguration(f"{VARIABLE}: must be <incarnation>.<attempt>, got {text!r}")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        """Return the form that `parse` reads."""
        return f"{self.incarnation}.{self.attempt}"
