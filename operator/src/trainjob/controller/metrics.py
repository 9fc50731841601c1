"""Prometheus metrics of the process and of each job."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from trainjob.cluster import JobKey, Manifest
from trainjob.cluster.agents.poller import Outcome
from trainjob.cluster.kube.transport import Call

# Metrics of each job, read from its status at every scrape.


_NAME = ("namespace", "name")
_RESTARTS = ("charged", "uncharged", "refunded")
_SPENT = ("starting", "training", "restarting", "evaluating", "suspended")


class JobsByState(Collector):
    """Counts jobs at every scrape: a stored count could drift from the jobs."""

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
    """Progress, restarts and time spent of every job."""

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


# The metrics of one process.


_RECONCILE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_AGENT_CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0)

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, of no use here

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The metrics of one process, in their own registry."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._depth = Gauge("trainjob_queue_depth", "Jobs that wait for a worker.", registry=self._registry)
        self._reconcile = Histogram(
            "trainjob_reconcile_seconds",
            "Time of one pass over one job, from look to last write.",
            buckets=_RECONCILE_BUCKETS,
            registry=self._registry,
        )
        self._requests = Counter(
            "trainjob_api_requests",
            "Requests to the API server; code 0 is no answer.",
            ("verb", "resource", "code"),
            registry=self._registry,
        )
        self._restarts = Counter(
            "trainjob_watch_restarts",
            "Watches that ended before their time.",
            ("resource",),
            registry=self._registry,
        )
        self._agent_calls = Counter(
            "trainjob_agent_calls",
            "Calls to the jobs' agents: answered, unreachable, or refused by what isn't one of ours.",
            ("outcome",),
            registry=self._registry,
        )
        self._agent_seconds = Histogram(
            "trainjob_agent_call_seconds",
            "Time of one call to an agent that answered.",
            buckets=_AGENT_CALL_BUCKETS,
            registry=self._registry,
        )
        self._leader = Gauge(
            "trainjob_leader", "Whether this replica is the one at work.", registry=self._registry
        )

    def count_call(self, call: Call) -> None:
        """Count a request to the API server."""
        self._requests.labels(call.verb, call.resource, str(call.code)).inc()

    def count_restart(self, resource: str) -> None:
        """Count a watch that ended prematurely."""
        self._restarts.labels(resource).inc()

    def count_agent_call(self, outcome: Outcome, seconds: float) -> None:
        """Count a call to an agent, and record its time if the agent responded."""
        self._agent_calls.labels(outcome).inc()
        if outcome == "answered":
            self._agent_seconds.observe(seconds)

    def count_reconcile(self, _key: JobKey, seconds: float) -> None:
        """Record the time of one pass over a job."""
        self._reconcile.observe(seconds)

    def show_depth(self, depth: Callable[[], float]) -> None:
        """Read the queue's depth from `depth` at every scrape."""
        self._depth.set_function(depth)

    def show_leader(self) -> None:
        """Report that this replica leads."""
        self._leader.set(1)

    def show_jobs(self, jobs: Callable[[], Iterable[Manifest]]) -> None:
        """Read all jobs from `jobs` at every scrape."""
        self._registry.register(JobsByState(jobs))
        self._registry.register(JobFigures(jobs))

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
