"""Kubernetes' Event objects about jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from trainjob.cluster.kube.store import place_of
from trainjob.cluster.protocol import Manifest
from trainjob.core.wording import printable

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
