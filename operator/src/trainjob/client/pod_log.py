"""Reads the log of a pod's training container to its end, through dropped streams."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from trainjob.api import TRAINER_CONTAINER
from trainjob.client.problems import is_missing, is_passing
from trainjob.cluster.kube.informer import Backoff
from trainjob.cluster.kube.resources import PODS
from trainjob.cluster.local.process import TextLines
from trainjob.cluster.protocol import ClusterError
from trainjob.core.pods import read_pod

if TYPE_CHECKING:
    from trainjob.cluster.kube.client import ApiClient


# The position in one log: a dropped stream neither loses nor repeats lines.
#
# A log can only be requested from a whole second on (the fraction of `PodLogOptions.sinceTime` is dropped).
# Two writers stamp stdout and stderr, so stamps sometimes go back a little. So reading resumes one second
# before the last line, and skips lines of that time that were read already, each as often as it was read.


_STAMPED = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)(?: (.*))?", re.DOTALL
)
_LONGEST = 1 << 20
_SECOND = 10**9
_OVERLAP = _SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class LogLine:
    """One line.

    Attributes:
        nanoseconds: since 1970, when it was written; of a line without a stamp, that of the line before.
        stamp: as the API server gives it.
        text: without terminal control characters.
    """

    nanoseconds: int
    stamp: str
    text: str


class LogCursor:
    """Turns the pieces of a log's streams into lines, one stream after the other."""

    def __init__(self) -> None:
        self._rest = b""
        self._latest = 0
        self._stamp = ""
        self._taken = deque[tuple[int, int]]()  # of this stream: (nanoseconds, hash of the line)
        self._before = Counter[int]()  # of earlier streams, in the time that is read again

    @property
    def since(self) -> str | None:
        """Return the `sinceTime` of the next stream; None: from the beginning."""
        if not self._latest:
            return None
        start = max(0, self._latest - _OVERLAP) // _SECOND
        return (_EPOCH + timedelta(seconds=start)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def feed(self, piece: bytes) -> list[LogLine]:
        """Return the new lines that a piece completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [line for raw in lines if (line := self._take(raw)) is not None]

    def finish(self) -> list[LogLine]:
        """Return a last line without a line end, when the log is over."""
        raw, self._rest = self._rest, b""
        line = self._take(raw) if _STAMPED.fullmatch(raw) else None
        return [line] if line is not None else []

    def reopen(self) -> None:
        """Prepare for another stream of the log, from `since` on, which repeats a line cut in the middle."""
        self._rest = b""
        self._forget()
        # Repeated lines moved from `_before` to `_taken`; those left in `_before` may still be repeated.
        self._before = +self._before + Counter(line for _, line in self._taken)
        self._taken.clear()

    def _take(self, raw: bytes) -> LogLine | None:
        found = _STAMPED.fullmatch(raw)
        if found:
            self._stamp = raw[: found.end(3)].decode()
        moment = _nanoseconds(found) if found else self._latest
        key = hash(raw)
        self._latest = max(self._latest, moment)
        self._taken.append((moment, key))
        if self._taken[0][0] < self._latest - _OVERLAP - _SECOND:
            self._forget()
        if self._before[key] > 0:
            self._before[key] -= 1
            return None
        return LogLine(moment, self._stamp if found else "", _clean(found[4] or b"" if found else raw))

    def _forget(self) -> None:
        oldest = max(0, self._latest - _OVERLAP) // _SECOND * _SECOND
        while self._taken and self._taken[0][0] < oldest:
            self._taken.popleft()


def _nanoseconds(found: re.Match[bytes]) -> int:
    zone = found[3].decode()
    moment = datetime.fromisoformat(found[1].decode() + ("+00:00" if zone == "Z" else zone))
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    return seconds * _SECOND + int((found[2] or b"0").ljust(9, b"0"))


def _clean(text: bytes) -> str:
    return "".join(TextLines(_LONGEST).feed(text + b"\n"))


# A log may be silent; a new request costs little and detects dead connections.
_SILENCE_SECONDS = 60.0
_MOST_FAILURES = 4
_WITHOUT_NEWS = 1.0
"""Seconds to wait when a log has ended, but the API server doesn't report its container as ended."""


@dataclass(frozen=True)
class LogSource:
    """The pod whose log is read.

    Attributes:
        ended: the container has ended already: its log is whole.
    """

    namespace: str
    pod: str
    ended: bool = False


class LogLost(Exception):
    """The rest of a log can't be read; the text says why."""


class PodLog:
    """Reads one log.

    Args:
        api: the API server that has it.
        source: its pod.
        follow: read until the container has ended.
        tail: lines before the end to begin with; None: from the first line.
        gives_up: returns whether repeated failures end the reading.
    """

    def __init__(
        self,
        api: ApiClient,
        source: LogSource,
        *,
        follow: bool = False,
        tail: int | None = None,
        gives_up: Callable[[], bool] = lambda: True,
    ) -> None:
        self._api, self._source = api, source
        self._follow, self._tail = follow, tail
        self._gives_up = gives_up
        self._cursor = LogCursor()
        self._backoff = Backoff()

    async def lines(self) -> AsyncGenerator[LogLine]:
        """Yield every line once.

        Raises:
            LogLost: the rest can't be read.
            ClusterError: the API server refuses the log permanently.
        """
        ended = self._source.ended
        while True:
            try:
                async with aclosing(self._stream(follow=self._follow and not ended)) as lines:
                    async for line in lines:
                        yield line
                if ended or not self._follow:
                    break
                ended = await self._has_ended()
                if not ended:
                    await asyncio.sleep(_WITHOUT_NEWS)
            except ClusterError as error:
                if is_missing(error):
                    break  # the pod was deleted, and its log with it
                await self._pause(error)
            self._cursor.reopen()
        for line in self._cursor.finish():
            yield line

    async def _stream(self, *, follow: bool) -> AsyncGenerator[LogLine]:
        query = {"container": TRAINER_CONTAINER, "timestamps": "true"}
        if follow:
            query["follow"] = "true"
        if self._cursor.since is not None:
            query["sinceTime"] = self._cursor.since
        elif self._tail is not None:
            query["tailLines"] = str(self._tail)
        source = self._source
        async with self._api.log(source.namespace, source.pod, query, inactivity=_SILENCE_SECONDS) as pieces:
            async for piece in pieces:
                self._backoff.reset()
                for line in self._cursor.feed(piece):
                    yield line

    async def _has_ended(self) -> bool:
        pod = read_pod(await self._api.get(PODS, self._source.namespace, self._source.pod))
        return pod is None or pod.ended

    async def _pause(self, error: ClusterError) -> None:
        """Pause after a failure, unless it is permanent."""
        wait = self._backoff.next()
        # A container that was just created has no log yet: the kubelet responds with 400.
        early = error.failure.code == 400
        if not is_passing(error) and not early:
            raise error
        if self._backoff.failures >= _MOST_FAILURES and (self._gives_up() or early):
            raise LogLost(error.failure.message or str(error)) from error
        await asyncio.sleep(wait)
