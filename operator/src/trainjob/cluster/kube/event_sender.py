"""Events go out in the background: no job waits for them, and none of them is worth an error."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from trainjob.cluster.errors import AlreadyExists, ClusterError, NotFound, Unavailable
from trainjob.cluster.kube.backoff import Backoff
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.event_objects import Series, build_event, build_repetition, series_of
from trainjob.cluster.kube.resources import EVENTS
from trainjob.cluster.protocol import Manifest
from trainjob.core.fair_queue import FairQueue

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
