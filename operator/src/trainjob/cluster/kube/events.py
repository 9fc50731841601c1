"""Kubernetes' Event objects about jobs, sent in the background."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.informer import Backoff
from trainjob.cluster.kube.store import place_of
from trainjob.cluster.kube.transport import EVENTS
from trainjob.cluster.protocol import AlreadyExists, ClusterError, Manifest, NotFound, Unavailable
from trainjob.core.queueing import FairQueue
from trainjob.core.wording import printable

# Kubernetes' Event objects about jobs.


LONGEST_MESSAGE = 1024
"""Bytes."""

LONGEST_NAME = 253
COMPONENT = "trainjob-controller"


@dataclass(frozen=True)
class Series:
    """What makes two events the same one, told again.

    Attributes:
        namespace: of the job.
        name: of the job.
        uid: of the job.
        type: `Normal` or `Warning`.
        reason: one word.
        message: one sentence, no longer than an Event's may be.
    """

    namespace: str
    name: str
    uid: str
    type: str
    reason: str
    message: str


def series_of(job: Manifest, *, type_: str, reason: str, message: str) -> Series:
    """Return the series that an event about this job belongs to."""
    namespace, name = place_of(job)
    told = clamp(printable(message), LONGEST_MESSAGE)
    return Series(namespace, name, job["metadata"]["uid"], type_, reason, told)


def clamp(text: str, limit: int) -> str:
    """Return the text cut to at most so many bytes, never within a character."""
    raw = text.encode(errors="replace")
    if len(raw) <= limit:
        return raw.decode()
    mark = "…"
    return raw[: limit - len(mark.encode())].decode(errors="ignore") + mark


def build_event(
    series: Series, *, suffix: str, involved: Manifest, count: int, first: datetime, last: datetime
) -> dict[str, Any]:
    """Return a new Event.

    Args:
        series: what is told.
        suffix: makes its name, `<job>.<suffix>`, one of a kind.
        involved: the job, for `kubectl describe` to find the event by.
        count: how many times it has happened.
        first: when it happened first.
        last: when it happened last.
    """
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{series.name[: LONGEST_NAME - len(suffix) - 1]}.{suffix}",
            "namespace": series.namespace,
        },
        "involvedObject": {
            "apiVersion": involved["apiVersion"],
            "kind": involved["kind"],
            "namespace": series.namespace,
            "name": series.name,
            "uid": series.uid,
            "resourceVersion": involved["metadata"].get("resourceVersion", ""),
        },
        "type": series.type,
        "reason": series.reason,
        "message": series.message,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": write_time(first),
        "lastTimestamp": write_time(last),
        "count": count,
    }


def build_repetition(count: int, last: datetime) -> dict[str, Any]:
    """Return the patch of an Event that has happened again."""
    return {"count": count, "lastTimestamp": write_time(last)}


def write_time(time: datetime) -> str:
    """Return a time as Kubernetes writes it, to the second."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Events go out in the background: no job waits for them, and none of them is worth an error.


_log = logging.getLogger(__name__)

MOST_WAITING = 200
"""Of one namespace: a storm in one costs no other's events."""

MOST_REMEMBERED = 4096
TRIES = 5


@dataclass
class _Waiting:
    """What happened in a series since it was told last."""

    job: Manifest
    first: datetime
    last: datetime
    count: int = 1


@dataclass(frozen=True)
class _Told:
    """The Event that tells of a series."""

    name: str
    count: int


class EventSender:
    """Tells of each series with one Event, whose count grows; namespaces and their jobs take turns.

    Args:
        api: where the events go.
        clock: returns the time, with zone.
    """

    def __init__(self, api: ApiClient, clock: Callable[[], datetime]) -> None:
        self._api = api
        self._clock = clock
        self._waiting: dict[Series, _Waiting] = {}
        self._queue: FairQueue[Series] = FairQueue()
        self._of_namespace: Counter[str] = Counter()
        self._told: OrderedDict[Series, _Told] = OrderedDict()
        self._wakeup = asyncio.Event()

    def post(self, job: Manifest, *, type_: str, reason: str, message: str) -> None:
        """Have an event sent soon; what waits already in the same series goes out with it."""
        series, now = series_of(job, type_=type_, reason=reason, message=message), self._clock()
        waiting = self._waiting.get(series)
        if waiting is not None:
            waiting.count += 1
            waiting.last = now
        elif self._of_namespace[series.namespace] < MOST_WAITING:
            self._waiting[series] = _Waiting(job, now, now)
            self._queue.add(series, series.namespace, series.name)
            self._of_namespace[series.namespace] += 1
            self._wakeup.set()
        else:
            _log.warning(
                "too many events of namespace %s wait to be sent; %s about %s is dropped",
                series.namespace,
                reason,
                series.name,
            )

    async def run(self) -> None:
        """Send what is posted until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while (series := self._queue.take()) is not None:
                self._queue.release(series.namespace)  # one is sent at a time: nobody holds a place
                self._of_namespace -= Counter([series.namespace])
                await self._deliver(series, self._waiting.pop(series))

    async def _deliver(self, series: Series, waiting: _Waiting) -> None:
        suffix = secrets.token_hex(8)  # the same for every try: one that got through unseen isn't repeated
        backoff = Backoff()
        for _ in range(TRIES):
            try:
                await self._send(series, waiting, suffix)
            except Unavailable as error:
                await asyncio.sleep(backoff.next(error.retry_after))
            except NotFound:
                if self._told.pop(series, None) is None:
                    return  # its namespace is gone
                # The Event has expired: it is told anew.
            except ClusterError as error:
                _log.info("the event %s about %s can't be sent: %s", series.reason, series.name, error)
                return
            else:
                return
        _log.warning("the event %s about %s could not be sent", series.reason, series.name)

    async def _send(self, series: Series, waiting: _Waiting, suffix: str) -> None:
        told = self._told.get(series)
        if told is not None:
            count = told.count + waiting.count
            patch = build_repetition(count, waiting.last)
            await self._api.patch(EVENTS, series.namespace, told.name, patch)
            self._remember(series, _Told(told.name, count))
            return
        event = build_event(
            series,
            suffix=suffix,
            involved=waiting.job,
            count=waiting.count,
            first=waiting.first,
            last=waiting.last,
        )
        with suppress(AlreadyExists):  # an earlier try got through
            await self._api.create(EVENTS, event)
        self._remember(series, _Told(event["metadata"]["name"], waiting.count))

    def _remember(self, series: Series, told: _Told) -> None:
        self._told[series] = told
        self._told.move_to_end(series)
        if len(self._told) > MOST_REMEMBERED:
            self._told.popitem(last=False)
