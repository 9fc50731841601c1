"""Where a replica is asked for a profile: the job's output folder, on this machine or seen from a pod."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from trainjob.core.lenient import integer, known, text

_LONGEST_TEXT = 4096


class Away(Exception):
    """The replica can't be asked just now; the sentence says why."""


class Desk(Protocol):
    """Where requests of one replica are left. The first three may raise `Away`."""

    def ask(self, request: Mapping[str, Any]) -> None:
        """Leave a request, instead of any other."""

    def answer(self) -> Mapping[str, Any]:
        """Return what has been answered last, empty if nothing has."""

    def withdraw(self, number: str) -> None:
        """Take the request of this id back."""

    def why_over(self) -> str | None:
        """Return why nothing will be answered any more, in a sentence; None while something may."""


LARGEST_ANSWER = 1 << 14
"""Characters; one has some hundred."""


def read_answer(raw: str) -> Mapping[str, Any]:
    """Return the answer, empty if it is none.

    A training image writes it: its texts have one line, and nothing in them drives a terminal.
    """
    try:
        answer = json.loads(raw) if len(raw) <= LARGEST_ANSWER else None
    except (ValueError, RecursionError):
        return {}
    return known(answer, _ANSWER) if isinstance(answer, dict) else {}


_ANSWER: Mapping[str, Callable[[Any], object]] = {
    **dict.fromkeys(("id", "state"), text),
    **dict.fromkeys(("step", "first", "last"), integer),
    **dict.fromkeys(("folder", "message"), lambda value: text(value, _LONGEST_TEXT)),
}
