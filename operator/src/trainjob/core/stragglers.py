"""Replicas that all others wait for in every step: as slow as the slowest is the whole job.

What counts is a replica's own work in a step. The whole step takes the same everywhere, since the fast ones
wait for the slow one in it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from trainjob.api import Progress, Straggler, TrainJobStatus
from trainjob.core.actions import Event
from trainjob.core.backoff import time_left
from trainjob.core.gang import read_seat
from trainjob.core.observed import Observed

SLOW = 1.5
"""Times the others' median: who takes so long is a straggler."""

CAUGHT_UP = 1.25
"""Below so many times the others' median it is none any more; in between it stays what it was."""

NOTICEABLE = 0.005
"""Seconds more than the others' median: tiny steps differ by more than half for no reason."""

APART = timedelta(seconds=20)
"""Between the two looks that it takes; the status keeps the earlier one."""

REASON = "Straggler"


def find_stragglers(
    earlier: Mapping[str, float], now: Mapping[str, float], known: Collection[str]
) -> dict[str, float]:
    """Return each straggler with the others' median, in seconds.

    Args:
        earlier: each replica's work in a step, in seconds, at the look before: one slow step is no news.
        now: the same, as it is now.
        known: those that are stragglers already.
    """
    before = {replica for replica, _ in _beyond(earlier, SLOW)}
    found = dict(_beyond(now, SLOW))
    staying = dict(_beyond(now, CAUGHT_UP, margin=0.0))
    return {
        replica: median
        for replica, median in staying.items()
        if replica in known or (replica in before and replica in found)
    }


def straggler_fields(observed: Observed, progress: Progress, now: datetime) -> dict[str, Any]:
    """Return fields of the status: who straggles now, and who was told of in this attempt."""
    status, last = observed.status, observed.status.progress
    if last is None or last.attempt != progress.attempt:
        status, last = TrainJobStatus(), Progress()
    known = {straggler.replica for straggler in status.stragglers}
    is_earlier = last.time is not None and time_left(last.time, APART, now) <= timedelta(0)
    found = find_stragglers(last.work_seconds if is_earlier else {}, progress.work_seconds, known)
    nodes = {pod.replica.name: pod.node for pod in observed.training_pods}
    stragglers = tuple(
        Straggler(
            replica=replica,
            node=nodes.get(replica, ""),
            work_seconds=progress.work_seconds[replica],
            median_seconds=float(f"{median:.4g}"),
        )
        for replica, median in found.items()
    )
    told = dict.fromkeys((*status.stragglers_told, *found))
    return {"stragglers": stragglers, "stragglers_told": tuple(told)}


def straggler_events(before: TrainJobStatus, status: TrainJobStatus) -> tuple[Event, ...]:
    """Return one event for each straggler that is told of for the first time in its attempt."""
    news = set(status.stragglers_told).difference(before.stragglers_told)
    told = (each for each in status.stragglers if each.replica in news)
    return tuple(Event("Warning", REASON, describe(each)) for each in told)


def describe(straggler: Straggler) -> str:
    """Return `worker 2 on node n takes 0.41 s of work a step, the others 0.20 s (median): …`."""
    seat = read_seat(straggler.replica)
    who = seat.title if seat is not None else straggler.replica
    place = f" on node {straggler.node}" if straggler.node else ""
    work, median = _duration(straggler.work_seconds), _duration(straggler.median_seconds)
    return (
        f"{who}{place} takes {work} of work a step, the others {median} (median): the whole job waits for it"
    )


def _beyond(
    work: Mapping[str, float], factor: float, margin: float = NOTICEABLE
) -> Iterable[tuple[str, float]]:
    """Yield who takes so many times as long as the others' median, with that."""
    ordered = sorted(work.values())
    if len(ordered) < 2:
        return
    for replica, seconds in work.items():
        median = _median_without(ordered, bisect_left(ordered, seconds))
        if seconds >= median + margin and seconds > factor * median:
            yield replica, median


def _median_without(ordered: Sequence[float], left_out: int) -> float:
    rest = len(ordered) - 1
    low, high = ((k if k < left_out else k + 1) for k in ((rest - 1) // 2, rest // 2))
    return (ordered[low] + ordered[high]) / 2


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.0f} ms"
