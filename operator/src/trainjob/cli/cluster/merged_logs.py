"""The logs of several pods as one, in the order in which lines were written."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from trainjob.cli.cluster.answers import Refused
from trainjob.cli.cluster.cursor import LogLine
from trainjob.cli.cluster.pod_log import LogLost, LogSource, PodLog
from trainjob.core.pods import Pod

if TYPE_CHECKING:
    from trainjob.cli.cluster.server import Server

Stamped = tuple[str, LogLine]
"""A replica's name and a line of its log."""


def merge_logs(logs: Iterable[Iterator[Stamped]]) -> Iterator[Stamped]:
    """Yield the lines of all logs by their time, reading no further ahead than it takes."""
    return heapq.merge(*logs, key=lambda line: line[1].nanoseconds)


def pod_lines(
    server: Server, pods: Iterable[Pod], namespace: str, tail: int | None, complain: Callable[[str], None]
) -> list[Iterator[Stamped]]:
    """Return the lines of each pod as far as they are written by now; what can't be read is complained of."""
    return [_lines(server, pod, namespace, tail, complain) for pod in pods]


def _lines(
    server: Server, pod: Pod, namespace: str, tail: int | None, complain: Callable[[str], None]
) -> Iterator[Stamped]:
    log = PodLog(server, LogSource(namespace, pod.name, ended=pod.ended), tail=tail)
    try:
        for line in log.lines():
            yield pod.replica.name, line
    except (LogLost, Refused) as lost:
        if isinstance(lost, Refused) and lost.answer.code in (401, 403):
            raise
        complain(f"the log of {pod.replica.title} can't be read to its end: {lost}")
