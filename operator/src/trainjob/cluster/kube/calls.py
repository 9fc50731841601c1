"""What was asked of the API server, for metrics and for the test of the permissions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """One request that was answered, or got no answer; one that we cancelled is not told of.

    Attributes:
        verb: as RBAC writes it: `get`, `list`, `watch`, `create`, `update`, `patch` or `delete`.
        group: the API group.
        resource: the plural, with the subresource behind a slash.
        code: the HTTP status; 0 when there was no answer.
        seconds: until the whole answer was there, for a watch until it began.
    """

    verb: str
    group: str
    resource: str
    code: int
    seconds: float


OnCall = Callable[[Call], None]


def ignore(_call: Call) -> None:
    """Do nothing."""
