"""Kubernetes' Event objects about jobs, sent in the background."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainjob.cluster.fair_slots import FairQueue
from trainjob.cluster.kube.cache import namespaced_name
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.informer import Backoff
from trainjob.cluster.kube.resources import EVENTS
from trainjob.cluster.protocol import AlreadyExists, ClusterError, Manifest, NotFound, Unavailable
from trainjob.core.delays import RECHECK
from trainjob.core.names import JobKey, is_training
from trainjob.core.pods import event_time, is_slow_to_start, read_pod
from trainjob.core.wording import printable
from trainjob_trainer.contract.reports import shorten

# Event objects.


LONGEST_MESSAGE = 1024
"""Bytes."""

LONGEST_NAME = 253
COMPONENT = "trainjob-controller"


@dataclass(frozen=True, slots=True)  # thousands are remembered
class Series:
    """The identity of an event: equal events are counted in one Event object.

    Attributes:
        namespace: of the job.
        name: of the job.
        uid: of the job.
        type: `Normal` or `Warning`.
        reason: one word.
        message: one sentence of at most `LONGEST_MESSAGE` bytes.
    """

    namespace: str
    name: str
    uid: str
    type: str
    reason: str
    message: str


def series_of(job: Manifest, *, type_: str, reason: str, message: str) -> Series:
    """Return the series that an event about this job belongs to."""
    namespace, name = namespaced_name(job)
    text = shorten(printable(message), LONGEST_MESSAGE, in_bytes=True)
    return Series(namespace, name, job["metadata"]["uid"], type_, reason, text)


def build_event(
    series: Series, *, suffix: str, involved: Manifest, count: int, first: datetime, last: datetime
) -> dict[str, Any]:
    """Return a new Event.

    Args:
        series: what happened.
        suffix: makes its name, `<job>.<suffix>`, unique.
        involved: the job, by which `kubectl describe` finds the event.
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
    """Return the patch of an Event for what has happened again."""
    return {"count": count, "lastTimestamp": write_time(last)}


def write_time(time: datetime) -> str:
    """Return a time in Kubernetes' format, to the second."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Events about pods, read only about pods that take long to start: their volumes and images are in no status.


class PodEvents:
    """The newest Event about the first pod of a job that is slow to start, read again at intervals.

    Args:
        api: the API server.
        clock: returns the time, with time zone.
    """

    def __init__(self, api: ApiClient, clock: Callable[[], datetime]) -> None:
        self._api = api
        self._clock = clock
        self._known: dict[JobKey, tuple[datetime, dict[str, Manifest]]] = {}

    async def of(self, key: JobKey, pods: Iterable[Manifest]) -> Mapping[str, Manifest]:
        """Return the newest Event by the name of its pod; nothing where it isn't allowed to read Events."""
        now = self._clock()
        found = (read_pod(pod) for pod in pods if (pod.get("status") or {}).get("phase") == "Pending")
        slow = [p for p in found if p is not None and is_slow_to_start(p, now)]
        if not slow:
            self._known.pop(key, None)
            return {}
        read_at, events = self._known.get(key, (None, {}))
        if read_at is None or now - read_at >= RECHECK:
            events = {}
            pod = min(slow, key=lambda p: (not is_training(p.replica), p.replica))
            with suppress(ClusterError):
                about = f"involvedObject.uid={pod.uid}"
                listed = (await self._api.list(EVENTS, key.namespace, fields=about)).get("items") or ()
                events = {pod.name: max(listed, key=event_time)} if listed else {}
            self._known[key] = now, events
        return events


# Sending in the background: no job waits for an event, and a failure is only logged.


_log = logging.getLogger(__name__)

MOST_WAITING = 200
"""Of one namespace, so that a flood of events in one drops none of another."""

MOST_REMEMBERED = 4096
TRIES = 5


@dataclass
class _Waiting:
    """What happened in a series since its Event was last sent."""

    job: Manifest
    first: datetime
    last: datetime
    count: int = 1


@dataclass(frozen=True, slots=True)
class _Posted:
    """The Event object of a series."""

    name: str
    count: int


class EventSender:
    """Sends one Event with a growing count for each series; namespaces and their jobs take turns.

    Args:
        api: the API server.
        clock: returns the time, with time zone.
    """

    def __init__(self, api: ApiClient, clock: Callable[[], datetime]) -> None:
        self._api = api
        self._clock = clock
        self._waiting: dict[Series, _Waiting] = {}
        self._queue: FairQueue[Series] = FairQueue()
        self._of_namespace: Counter[str] = Counter()
        self._posted: OrderedDict[Series, _Posted] = OrderedDict()
        self._wakeup = asyncio.Event()

    def post(self, job: Manifest, *, type_: str, reason: str, message: str) -> None:
        """Queue an event; it is sent together with what already waits in the same series."""
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
        """Send posted events until cancelled."""
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while (series := self._queue.take()) is not None:
                self._queue.release(series.namespace)  # one is sent at a time, so none holds a slot
                self._of_namespace -= Counter([series.namespace])
                await self._deliver(series, self._waiting.pop(series))

    async def _deliver(self, series: Series, waiting: _Waiting) -> None:
        suffix = secrets.token_hex(8)  # the same for every try: one that succeeded unseen isn't repeated
        backoff = Backoff()
        for _ in range(TRIES):
            try:
                await self._send(series, waiting, suffix)
            except Unavailable as error:
                await asyncio.sleep(backoff.next(error.retry_after))
            except NotFound:
                if self._posted.pop(series, None) is None:
                    return  # its namespace is gone
                # The Event has expired: the next try creates a new one.
            except ClusterError as error:
                _log.info("the event %s about %s can't be sent: %s", series.reason, series.name, error)
                return
            else:
                return
        _log.warning("the event %s about %s could not be sent", series.reason, series.name)

    async def _send(self, series: Series, waiting: _Waiting, suffix: str) -> None:
        posted = self._posted.get(series)
        if posted is not None:
            count = posted.count + waiting.count
            patch = build_repetition(count, waiting.last)
            await self._api.patch(EVENTS, series.namespace, posted.name, patch)
            self._remember(series, _Posted(posted.name, count))
            return
        event = build_event(
            series,
            suffix=suffix,
            involved=waiting.job,
            count=waiting.count,
            first=waiting.first,
            last=waiting.last,
        )
        with suppress(AlreadyExists):  # an earlier try succeeded
            await self._api.create(EVENTS, event)
        self._remember(series, _Posted(event["metadata"]["name"], waiting.count))

    def _remember(self, series: Series, posted: _Posted) -> None:
        self._posted[series] = posted
        self._posted.move_to_end(series)
        if len(self._posted) > MOST_REMEMBERED:
            self._posted.popitem(last=False)
