"""What the measurements of a fleet come to: how jobs should end, percentiles of histograms, and growth."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

MIB = 1 << 20
WRITES = frozenset({"create", "update", "patch", "delete"})

MOST_GROWTH = 1.05
"""Of the memory, from a sixth of a soak to its end."""


@dataclass(frozen=True)
class Fate:
    """What happens to a job, and how it ends.

    Attributes:
        name: also the word by which kwok's stages know it.
        weight: how often, beside the others'.
        state: the job's last one.
        counted: restarts that count against `maxRestarts`.
        uncounted: the others.
    """

    name: str
    weight: int
    state: str = "Complete"
    counted: int = 0
    uncounted: int = 0


WELL = Fate("well", 80)
FATES = (
    WELL,
    Fate("killed", 6, counted=1),  # a container; its pod is replaced
    Fate("evicted", 5, uncounted=1),  # a pod
    Fate("in-place", 5, counted=1),  # a process: the agents restart it, and report it
    Fate("invalid", 4, state="Failed"),  # the exit code says that a restart can't help
)


def fate_of(seed: int, number: int) -> Fate:
    """Return the fate of a job, the same for the same seed and number."""
    (fate,) = random.Random(f"{seed}/{number}").choices(FATES, [fate.weight for fate in FATES])  # noqa: S311
    return fate


def what_is_wrong(fate: Fate, status: Mapping[str, Any]) -> str:
    """Return how a job has ended otherwise than it should; empty if it hasn't."""
    restarts = status.get("restarts") or {}
    found = (status.get("state"), restarts.get("counted", 0), restarts.get("notCounted", 0))
    wanted = (fate.state, fate.counted, fate.uncounted)
    if found == wanted:
        return ""
    return f"{fate.name}: state and restarts, counted and not, are {found} instead of {wanted}"


Key = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Counts:
    """The samples of a process's metrics, by name and labels."""

    samples: Mapping[Key, float]

    def __sub__(self, earlier: Counts) -> Counts:
        """Return what has been counted since."""
        return Counts({key: value - earlier.samples.get(key, 0) for key, value in self.samples.items()})

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of this name that have these labels."""
        wanted = labels.items()
        return sum(value for (key, has), value in self.samples.items() if key == name and wanted <= has)

    def requests(self) -> float:
        """Return the requests to the API server but for those about the Lease."""
        return self.total("trainjob_api_requests_total") - self.total(
            "trainjob_api_requests_total", resource="leases"
        )

    def writes(self) -> dict[str, int]:
        """Return the writes to the API server but for those of the Lease, by verb and resource."""
        made: dict[str, int] = {}
        for (name, has), value in self.samples.items():
            labels = dict(has)
            is_write = labels.get("verb") in WRITES and labels.get("resource") != "leases"
            if name == "trainjob_api_requests_total" and value and is_write:
                what = f"{labels['verb']} {labels['resource']}"
                made[what] = made.get(what, 0) + round(value)
        return made

    def quantile(self, name: str, share: float) -> float:
        """Return a quantile of a histogram, interpolated as Prometheus does; NaN without values."""
        buckets = sorted(
            (float(dict(has)["le"]), value)
            for (key, has), value in self.samples.items()
            if key == f"{name}_bucket"
        )
        if not buckets or not buckets[-1][1]:
            return math.nan
        rank = share * buckets[-1][1]
        for (lower, below), (upper, upto) in pairwise([(0.0, 0.0), *buckets]):
            if upto >= rank:
                width = 0.0 if math.isinf(upper) else upper - lower
                return lower + width * (rank - below) / (upto - below)
        return math.nan


def read_counts(text: str) -> Counts:
    """Return the samples of a page of metrics."""
    return Counts(
        {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    )


@dataclass(frozen=True)
class Look:
    """One look at a controller that has nothing to do.

    Attributes:
        seconds: since the soak began.
        resident_bytes: of its memory.
        tasks: of its event loop.
        connections: sockets that it has open.
        watches: that the API server has open, for all of its clients.
    """

    seconds: float
    resident_bytes: int
    tasks: int
    connections: int
    watches: int


def growth(sixth: Look, end: Look) -> list[str]:
    """Return what has grown from a sixth of a soak to its end, one sentence each."""
    grown = []
    if end.resident_bytes > MOST_GROWTH * sixth.resident_bytes:
        sizes = f"{sixth.resident_bytes / MIB:.1f} to {end.resident_bytes / MIB:.1f} MiB"
        grown.append(f"the memory has grown from {sizes}")
    for what in ("tasks", "connections", "watches"):
        before, after = getattr(sixth, what), getattr(end, what)
        if after > before:
            grown.append(f"the {what} have grown from {before} to {after}")
    return grown


def errors_of_tracebacks(log: str) -> list[str]:
    """Return the errors that the tracebacks in a log end with."""
    found, inside = [], False
    for line in log.splitlines():
        if "Traceback (most recent call last)" in line:
            inside = True
        elif inside and line and not line.startswith((" ", "\t")):
            found.append(line)
            inside = False
    return found


def mib(size: float) -> float:
    """Return bytes as MiB."""
    return round(size / MIB, 1)


def milliseconds(seconds: float) -> float | None:
    """Return a figure that JSON can hold."""
    return round(seconds * 1000, 1) if math.isfinite(seconds) else None


def listed(sentences: Sequence[str], most: int = 20) -> list[str]:
    """Return the first of many sentences, and how many more there are."""
    more = len(sentences) - most
    return [*sentences[:most], *([f"and {more} more"] if more > 0 else [])]


def tally(words: Iterable[str]) -> dict[str, int]:
    """Return how often each word comes."""
    found: dict[str, int] = {}
    for word in words:
        found[word] = found.get(word, 0) + 1
    return dict(sorted(found.items()))
