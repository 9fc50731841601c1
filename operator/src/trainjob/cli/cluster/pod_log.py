"""The log of one pod's training container, through dropped streams, to its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainjob.api import TRAINER_CONTAINER
from trainjob.cli.cluster.answers import Refused, ServerProblem, is_missing, is_passing
from trainjob.cli.cluster.cursor import LogCursor, LogLine
from trainjob.cli.cluster.pace import Pace
from trainjob.cli.cluster.resources import PODS
from trainjob.core.pods import read_pod

if TYPE_CHECKING:
    from trainjob.cli.cluster.server import Server

# Silence is a log's right; asking anew costs little and finds connections that are dead.
_SILENCE_SECONDS = 60.0
_MOST_FAILURES = 4
_WITHOUT_NEWS = 1.0
"""Seconds to wait when a log has ended but its container has not, as far as the API server knows."""


@dataclass(frozen=True)
class LogSource:
    """Whose log.

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
        server: that has it.
        source: whose.
        follow: go on until the container has ended.
        tail: begin with this many lines before the end; None: with the first.
        pace: for waiting between streams.
        gives_up: tells whether failures are no longer worth any patience.
    """

    def __init__(
        self,
        server: Server,
        source: LogSource,
        *,
        follow: bool = False,
        tail: int | None = None,
        pace: Pace | None = None,
        gives_up: Callable[[], bool] = lambda: True,
    ) -> None:
        self._server, self._source = server, source
        self._follow, self._tail = follow, tail
        self._pace = pace or Pace()
        self._gives_up = gives_up
        self._cursor = LogCursor()
        self._failures = 0

    def lines(self) -> Iterator[LogLine]:
        """Yield every line once.

        Raises:
            LogLost: the rest can't be read.
            Refused: nobody may read it.
        """
        ended = self._source.ended
        while True:
            try:
                yield from self._stream(follow=self._follow and not ended)
                if ended or not self._follow:
                    break
                ended = self._has_ended()
                if not ended:
                    self._pace.pause(_WITHOUT_NEWS)
            except ServerProblem as problem:
                if is_missing(problem):
                    break  # the pod has gone, and its log with it
                self._bear(problem)
            self._cursor.reopen()
        yield from self._cursor.finish()

    def _stream(self, *, follow: bool) -> Iterator[LogLine]:
        query = {"container": TRAINER_CONTAINER, "timestamps": "true"}
        if follow:
            query["follow"] = "true"
        if self._cursor.since is not None:
            query["sinceTime"] = self._cursor.since
        elif self._tail is not None:
            query["tailLines"] = str(self._tail)
        source = self._source
        with self._server.log(source.namespace, source.pod, query, silence=_SILENCE_SECONDS) as pieces:
            for piece in pieces:
                self._failures = 0
                yield from self._cursor.feed(piece)

    def _has_ended(self) -> bool:
        pod = read_pod(self._server.get(PODS, self._source.namespace, self._source.pod))
        return pod is None or pod.ended

    def _bear(self, problem: ServerProblem) -> None:
        self._failures += 1
        # A container that has only just been made has no log yet: the kubelet's answer is 400 then.
        early = isinstance(problem, Refused) and problem.answer.code == 400
        if not is_passing(problem) and not early:
            raise problem
        if self._failures >= _MOST_FAILURES and (self._gives_up() or early):
            raise LogLost(str(problem)) from problem
        self._pace.hold_off(self._failures)
