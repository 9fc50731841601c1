"""What the measurements of two tenants come to: percentiles, ratios, and the promises that did not hold."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

MIB = 1 << 20

REASON = re.compile(r"[A-Z][A-Za-z]{0,63}")
"""What a condition or a failure of ours may have as its reason."""

_REFUSED_STATES = ("Failed",)
_WITH_LINES = "logTail"


@dataclass(frozen=True)
class Phase:
    """What an honest tenant got during a time, in seconds.

    Attributes:
        creations: from the acceptance of each job until a watch brought its last pod.
        first_calls: from the start of each job's pods until the first call of its leading agent.
        intervals: between two calls of one agent; the last one ends with the agent.
        probes: POSTs of small objects that the controller has no part in.
        unfinished: jobs that did not complete, with the state that they stayed in.
        processor_seconds: of the controller.
        peak_bytes: the largest resident set of the controller so far.
    """

    creations: Sequence[float]
    first_calls: Sequence[float]
    intervals: Sequence[float]
    probes: Sequence[float]
    unfinished: Mapping[str, str] = field(default_factory=dict)
    processor_seconds: float = 0.0
    peak_bytes: int = 0


@dataclass(frozen=True)
class Service:
    """How the controller did over the whole run.

    Attributes:
        limit_bytes: of its memory, by the chart.
        peak_bytes: the largest resident set.
        restarts: how often its process ended.
        lease_transitions: how often the Lease changed hands.
        slowest_health: seconds of the slowest answer to a look at its health.
        kept_seconds: the most processor time that it took before such an answer: a busy machine has no part
            in that, as it has in all times.
        patience_seconds: how long the kubelet waits for one.
        tracebacks: in its log.
        log_bytes: the length of its log.
    """

    limit_bytes: int
    peak_bytes: int
    restarts: int
    lease_transitions: int
    slowest_health: float
    kept_seconds: float
    patience_seconds: float
    tracebacks: int
    log_bytes: int


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value that so many percent of the values don't exceed; NaN where there are none."""
    if not values:
        return math.nan
    return sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]


def intervals(calls: Sequence[float], begin: float, end: float) -> list[float]:
    """Return the times between the calls that came from `begin` to `end`, the last one up to the end."""
    times = [begin, *(call for call in calls if begin < call <= end), end]
    return [later - earlier for earlier, later in pairwise(times)]


def spread(seconds: Sequence[float]) -> dict[str, float | None]:
    """Return the usual percentiles in milliseconds."""
    return {f"p{percent}_ms": milliseconds(percentile(seconds, percent)) for percent in (50, 99)}


def milliseconds(seconds: float) -> float | None:
    """Return a figure that JSON can hold."""
    return round(seconds * 1000, 1) if math.isfinite(seconds) else None


def describe(phase: Phase) -> dict[str, Any]:
    """Return a phase as the benchmark prints it."""
    return {
        "jobs": len(phase.creations),
        "creation": spread(phase.creations),
        "first_call": spread(phase.first_calls),
        "interval": spread(phase.intervals),
        "raw": spread(phase.probes),
        "cpu_seconds": round(phase.processor_seconds, 1),
        "peak_mib": round(phase.peak_bytes / MIB, 1),
    }


def ratios(alone: Phase, beside: Phase) -> dict[str, float | None]:
    """Return by how much each p99 grows when the other tenant is there."""
    pairs = {
        "creation": (alone.creations, beside.creations),
        "first_call": (alone.first_calls, beside.first_calls),
        "interval": (alone.intervals, beside.intervals),
        "raw": (alone.probes, beside.probes),
    }
    return {name: _ratio(*(percentile(values, 99) for values in pair)) for name, pair in pairs.items()}


def _ratio(alone: float, beside: float) -> float | None:
    ratio = beside / alone if alone else math.nan
    return round(ratio, 2) if math.isfinite(ratio) else None


def too_slow(grown: Mapping[str, float | None], most: float) -> list[str]:
    """Return what an honest tenant waits for longer than `most` times as it does alone."""
    told = {"creation": "a job's creation", "interval": "the time between calls of an agent"}
    return [
        f"{what} takes {ratio or 'immeasurably many'} times as long as alone: at most {most:g} is promised"
        for name, what in told.items()
        if (ratio := grown[name]) is None or ratio > most
    ]


def broken(service: Service, phases: Iterable[Phase], hostile: Mapping[str, Any]) -> list[str]:
    """Return which promises did not hold, one sentence each: none of them is about time."""
    return [
        *_of_the_controller(service),
        *(_of_the_honest(phase) for phase in phases if phase.unfinished),
        *_of_the_hostile(hostile),
    ]


def _of_the_honest(phase: Phase) -> str:
    few = ", ".join(f"{name} ({state})" for name, state in list(phase.unfinished.items())[:3])
    return f"{len(phase.unfinished)} of {len(phase.creations)} honest jobs did not complete: {few}"


def _of_the_controller(service: Service) -> Iterator[str]:
    if service.restarts:
        yield f"the controller ended {service.restarts} times"
    if service.lease_transitions:
        yield f"the Lease changed hands {service.lease_transitions} times"
    if service.peak_bytes > service.limit_bytes:
        peak, limit = service.peak_bytes / MIB, service.limit_bytes / MIB
        yield f"the controller took {peak:.0f} MiB: the chart allows {limit:.0f}"
    if service.kept_seconds > service.patience_seconds:
        yield f"the controller worked {service.kept_seconds:.1f} s before it answered a look at its health"
    if service.tracebacks:
        yield f"the controller's log has {service.tracebacks} tracebacks"


def _of_the_hostile(hostile: Mapping[str, Any]) -> Iterator[str]:
    for name, job in hostile["jobs"].items():
        if not (job["state"] and job["message"]):
            yield f"the hostile job {name} is told nothing"
        if job["refusable"] and job["state"] not in _REFUSED_STATES:
            yield f"the hostile job {name} is over a limit and was taken ({job['state']})"
        if job["refusable"] and "spec." not in (job["message"] or ""):
            yield f"the hostile job {name} is over a limit, and its message names no field"
    yield from (f"unclean text: {text}" for text in hostile["unclean"])
    yield from (f"a planted object took effect: {text}" for text in hostile["effects"])


def unclean(name: str, status: object) -> list[str]:
    """Return where a status or an event holds what drives a terminal, breaks a line or is no reason.

    Args:
        name: whose it is.
        status: JSON.
    """
    return [f"{name}{path}: {text[:60]!r}" for path, text in _texts(status) if not _is_clean(path, text)]


def _texts(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield f"{path}.<key>", key
            yield from _texts(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, f"{path}[]")
    elif isinstance(value, str):
        yield path, value


def _is_clean(path: str, text: str) -> bool:
    allowed = "\n\t" if path.endswith(f".{_WITH_LINES}") else ""
    if any(
        unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")
        for char in text
        if char not in allowed
    ):
        return False
    return not path.endswith(".reason") or bool(REASON.fullmatch(text))


def memory_bytes(quantity: str) -> int:
    """Return the bytes of a limit such as `512Mi`."""
    number, unit = re.fullmatch(r"(\d+)([KMG]i)?", quantity).groups()  # type: ignore[union-attr]
    return int(number) << {None: 0, "Ki": 10, "Mi": 20, "Gi": 30}[unit]
