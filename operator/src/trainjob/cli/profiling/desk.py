"""Where a replica is asked for a profile: the job's output folder, on this machine or seen from a pod."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol


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


def read_answer(text: str) -> Mapping[str, Any]:
    """Return the answer; empty if it is none."""
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}
