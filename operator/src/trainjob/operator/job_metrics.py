"""What Prometheus gets to see of each job, read off its status whenever somebody looks."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trainjob.cluster import Manifest

_NAME = ("namespace", "name")
_RESTARTS = ("charged", "uncharged", "refunded")
_SPENT = ("starting", "training", "restarting", "evaluating", "suspended")


class JobsByState(Collector):
    """Counts when asked: a count that is kept drifts from what it counts."""

    def __init__(self, jobs: Callable[[], Iterable[Manifest]]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        tally = Tally(_status(job).get("state") or "New" for job in self._jobs())
        family = GaugeMetricFamily(
            "trainjob_jobs", "Jobs by what `kubectl get tj` calls their state.", labels=("state",)
        )
        for state in sorted(tally):
            family.add_metric((state,), tally[state])
        yield family


class JobFigures(Collector):
    """Progress, restarts and time of every job that is there."""

    def __init__(self, jobs: Callable[[], Iterable[Manifest]]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        step = GaugeMetricFamily("trainjob_job_step", "Steps done.", labels=_NAME)
        speed = GaugeMetricFamily(
            "trainjob_job_examples_per_second", "Examples a second of all workers together.", labels=_NAME
        )
        lost = GaugeMetricFamily("trainjob_job_steps_lost", "Steps that had to be done again.", labels=_NAME)
        slow = GaugeMetricFamily(
            "trainjob_job_stragglers", "Replicas that all others wait for in every step.", labels=_NAME
        )
        restarts = GaugeMetricFamily(
            "trainjob_job_restarts", "Restarts by how they count.", labels=(*_NAME, "kind")
        )
        spent = GaugeMetricFamily(
            "trainjob_job_spent_seconds",
            "Where the time went, up to the latest change of the job's state.",
            labels=(*_NAME, "on"),
        )
        for job in self._jobs():
            name = (job["metadata"].get("namespace", ""), job["metadata"]["name"])
            status = _status(job)
            progress, counts = _part(status, "progress"), _part(status, "restarts")
            _add(step, name, progress.get("step"))
            _add(speed, name, progress.get("examplesPerSecond"))
            _add(lost, name, counts.get("stepsLost"))
            if progress:
                _add(slow, name, len(status.get("stragglers") or ()))
            for kind in _RESTARTS:
                _add(restarts, (*name, kind), counts.get(kind))
            for kind in _SPENT:
                _add(spent, (*name, kind), _part(status, "spent").get(kind))
        yield from (step, speed, lost, slow, restarts, spent)


def _add(family: GaugeMetricFamily, labels: tuple[str, ...], value: object) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        family.add_metric(labels, value)


def _status(job: Manifest) -> Mapping[str, Any]:
    return job.get("status") or {}


def _part(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return status.get(name) or {}
