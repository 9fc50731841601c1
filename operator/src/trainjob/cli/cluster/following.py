"""Follows objects: list, then watch, through dropped connections, expired versions and restarts."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainjob.cli.cluster.errors import Refused, Request, ServerProblem, is_passing, read_status

if TYPE_CHECKING:
    from trainjob.cli.cluster.resources import Resource
    from trainjob.cli.cluster.server import Manifest, Server


# Intervals between retries, and their deadline.


_FIRST = 0.2
_MOST = 10.0


@dataclass(frozen=True)
class RetryTimes:
    """Clock, pause and deadline of retries.

    Attributes:
        clock: seconds since any start.
        pause: sleeps for a number of seconds.
        deadline: by the clock, or None.
    """

    clock: Callable[[], float] = time.monotonic
    pause: Callable[[float], object] = time.sleep
    deadline: float | None = None

    def within(self, seconds: float | None) -> RetryTimes:
        """Return the same times with a deadline this far from now; None: no deadline."""
        return RetryTimes(self.clock, self.pause, None if seconds is None else self.clock() + seconds)

    @property
    def left(self) -> float:
        """Return the seconds until the deadline, infinity without one."""
        return float("inf") if self.deadline is None else self.deadline - self.clock()

    @property
    def is_over(self) -> bool:
        """Return whether the deadline has passed."""
        return self.left <= 0

    def hold_off(self, failures: int, asked: float | None = None) -> None:
        """Pause after this many failures in a row, at most until the deadline.

        Args:
            failures: from 1.
            asked: seconds that the API server asks to wait.
        """
        self.pause(max(0.0, min(asked if asked is not None else backoff(failures), self.left)))


def backoff(failures: int) -> float:
    """Return the seconds to wait after this many failures in a row: doubled each time, at most 10."""
    return float(min(_MOST, _FIRST * 2 ** min(failures - 1, 16)))


# The API server ends a watch at its timeout; a watch that is silent for longer is dead.
_WATCH_SECONDS = 50.0
_SILENCE_SECONDS = 60.0
_LIST_SECONDS = 30.0
_SHORT_SECONDS = 1.0

EXPIRED = 410


@dataclass(frozen=True)
class Seen:
    """An object exists, or has changed."""

    manifest: Manifest


@dataclass(frozen=True)
class Gone:
    """An object was deleted; `manifest` is its last known state."""

    manifest: Manifest


@dataclass(frozen=True)
class Listed:
    """All objects that exist now have been reported."""


@dataclass(frozen=True)
class Troubled:
    """A request failed; it will be repeated."""

    problem: ServerProblem


@dataclass(frozen=True)
class TimeOver:
    """The deadline has passed; this is the last change."""


Change = Seen | Gone | Listed | Troubled | TimeOver


@dataclass
class Known:
    """The known objects of a list; turns lists and watch events into changes.

    Attributes:
        version: to watch from, or None when a list is due.
        objects: by uid.
    """

    version: str | None = None
    objects: dict[str, Manifest] = field(default_factory=dict)

    def take_list(self, answer: Mapping[str, Any]) -> Iterator[Change]:
        """Take a whole list; known objects that are missing in it were deleted."""
        items = {_uid(item): item for item in answer.get("items") or ()}
        for uid in [uid for uid in self.objects if uid not in items]:
            yield Gone(self.objects.pop(uid))
        for uid, item in items.items():
            before = self.objects.get(uid)
            self.objects[uid] = item
            if before is None or _version(before) != _version(item):
                yield Seen(item)
        self.version = _version(answer)
        yield Listed()

    def take_event(self, event: Mapping[str, Any], request: Request) -> Iterator[Change]:
        """Take one event of a watch.

        Raises:
            Refused: it is an error other than an expired version, after which a list is due.
        """
        kind, item = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            answer = read_status(item)
            self.version = None
            if answer.code != EXPIRED:
                raise Refused(request, answer)
            return
        self.version = _version(item) or self.version
        if kind == "DELETED":
            self.objects.pop(_uid(item), None)
            yield Gone(item)
        elif kind in ("ADDED", "MODIFIED"):
            self.objects[_uid(item)] = item
            yield Seen(item)


def follow(
    server: Server,
    resource: Resource,
    namespace: str | None,
    selectors: Mapping[str, str],
    pace: RetryTimes | None = None,
) -> Iterator[Change]:
    """Yield the existing objects and then their changes, until the deadline if there is one.

    Raises:
        Refused: permanently: no permission, or no such resource.
    """
    rounds = _Rounds(server, resource, namespace, selectors, pace or RetryTimes())
    while not rounds.pace.is_over:
        try:
            for change in rounds.next():
                yield change
                if rounds.pace.is_over:
                    break
        except ServerProblem as problem:
            if not is_passing(problem) and not _is_expired(problem):
                raise
            if rounds.pace.is_over:
                break
            yield from rounds.recover(problem)
    yield TimeOver()


class _Rounds:
    """Rounds of a list, when one is due, and a watch."""

    def __init__(
        self,
        server: Server,
        resource: Resource,
        namespace: str | None,
        selectors: Mapping[str, str],
        pace: RetryTimes,
    ) -> None:
        self.pace = pace
        self._server, self._resource, self._namespace = server, resource, namespace
        self._selectors = selectors
        self._known = Known()
        self._failures = 0

    def next(self) -> Iterator[Change]:
        """List if due, then watch until the watch ends or a list is due."""
        known = self._known
        if known.version is None:
            seconds = min(_LIST_SECONDS, self._left())
            answer = self._server.list(self._resource, self._namespace, self._selectors, seconds)
            yield from known.take_list(answer)
        began = self.pace.clock()
        with closing(self._watch(known.version or "0")) as events:
            for event in events:
                yield from known.take_event(event, self._request)
                if known.version is None:
                    break
                self._failures = 0
        if self.pace.clock() - began < _SHORT_SECONDS:
            # Some proxies end a watch at once; without a pause this would be a busy loop.
            self._failures += 1
            self.pace.hold_off(self._failures)

    def recover(self, problem: ServerProblem) -> Iterator[Change]:
        """Report the problem unless it is expected, then hold off."""
        self._failures += 1
        if isinstance(problem, Refused):
            self._known.version = None
        # Proxies often end long connections.
        if not _is_expired(problem) and (problem.request.verb != "watch" or self._failures > 1):
            yield Troubled(problem)
        asked = problem.answer.retry_after if isinstance(problem, Refused) else None
        self.pace.hold_off(self._failures, asked)

    def _watch(self, version: str) -> Generator[Manifest]:
        query = {**self._selectors, "resourceVersion": version}
        seconds, silence = min(_WATCH_SECONDS, self._left()), min(_SILENCE_SECONDS, self._left())
        return self._server.watch(self._resource, self._namespace, query, seconds=seconds, silence=silence)

    def _left(self) -> float:
        return max(0.01, self.pace.left)

    @property
    def _request(self) -> Request:
        return Request("watch", self._resource.plural, self._namespace)


def _is_expired(problem: ServerProblem) -> bool:
    return isinstance(problem, Refused) and problem.answer.code == EXPIRED


def _uid(item: Mapping[str, Any]) -> str:
    metadata = item.get("metadata") or {}
    return str(metadata.get("uid") or metadata.get("name") or "")


def _version(item: Mapping[str, Any]) -> str | None:
    return (item.get("metadata") or {}).get("resourceVersion")
