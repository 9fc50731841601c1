"""Prometheus metrics of the process and of each job."""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from itertools import islice
from typing import Any, get_args

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

from trainjob.api import TrainJobStatus
from trainjob.cluster import JobKey, Manifest
from trainjob.cluster.agents.poller import Outcome
from trainjob.cluster.kube.resources import DEPENDENTS, TRAINJOBS
from trainjob.cluster.kube.transport import Call
from trainjob.core.conditions import RESTARTING, find_condition
from trainjob.core.observed import Observed
from trainjob.core.progress import WAITING_FOR_STORAGE
from trainjob.core.transitions import RESIZED, START_TIMEOUT

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each, of no use here

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

STATES = (
    *("New", "Queued", "Pending", "Running", "Restarting", WAITING_FOR_STORAGE, "Suspended", "Evaluating"),
    *("Complete", "Failing", "Failed"),
)
"""Every state; `New` is that of a job without a status."""

_TRAINS = ("Running", "Restarting", WAITING_FOR_STORAGE)
_RESTARTS = ("counted", "notCounted", "reset")
_SPENT = ("starting", "training", "restarting", "evaluating", "suspended", "queued")
_RESTART_CAUSES = ("failure", "resize", "start timeout")

_RECONCILE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_AGENT_CALL_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 3.0)
_JOB_BUCKETS = (1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600, 1800, 3600, 14400)
"""From a restart in place to hours in a queue."""

JOBS_AT_ONCE = 50
"""Some 5 ms: with all of 10,000 jobs at once, no lease is renewed for a second, and 45 MiB are in use."""


@dataclass(frozen=True)
class _Families(Collector):
    """What is rendered: families of metrics."""

    families: list[Metric]

    def collect(self) -> list[Metric]:
        return self.families


async def render_jobs(jobs: Iterable[Manifest], clock: Callable[[], float]) -> bytes:
    """Return the metrics of jobs in Prometheus' text format; other tasks run in between.

    They are read from the jobs' statuses at every scrape: no restart of the controller changes them.

    Args:
        jobs: read once.
        clock: returns Unix seconds.
    """
    tally = Tally(dict.fromkeys(STATES, 0))  # an alert needs the series before the first job
    left = iter(jobs)
    samples_of: dict[bytes, bytearray] = {}  # by the lines that describe them
    while True:
        some = list(islice(left, JOBS_AT_ONCE))
        tally.update(_status(job).get("state") or "New" for job in some)
        page = generate_latest(_Families(_families_of(some, clock())))
        for block in (b"\n" + page).split(b"\n# HELP ")[1:]:
            text, _, rest = block.partition(b"\n")
            kind, _, samples = rest.rstrip(b"\n").partition(b"\n")
            family = samples_of.setdefault(b"# HELP %b\n%b\n" % (text, kind), bytearray())
            family += samples + b"\n" if samples else b""
        if not some:
            break
        await asyncio.sleep(0)
    states = GaugeMetricFamily("trainjob_jobs", "Jobs by state, as in `kubectl get tj`.", labels=("state",))
    for state in sorted(tally):
        states.add_metric((state,), tally[state])
    first = generate_latest(_Families([states]))
    return b"".join([first, *(each for family in samples_of.items() for each in family)])


def _families_of(jobs: Iterable[Manifest], now: float) -> list[Metric]:
    """Return what is known of each job; times only of those that haven't finished."""
    families: list[Metric] = []

    def family(name: str, text: str, *label: str) -> GaugeMetricFamily:
        made = GaugeMetricFamily(f"trainjob_job_{name}", text, labels=("namespace", "name", *label))
        families.append(made)
        return made

    step = family("step", "Steps done.")
    speed = family("examples_per_second", "Examples a second of all workers together.")
    lost = family("steps_lost", "Steps that had to be repeated.")
    slow = family("stragglers", "Replicas that all others wait for in every step.")
    restarts = family("restarts", "Restarts by how they count.", "kind")
    spent = family("spent_seconds", "Time by activity, up to the latest change of the job's state.", "on")
    queue = family("queue_seconds", "Time from the job's creation until it was started; it grows until then.")
    state = family("state_seconds", "Time in the current state.", "state")
    first = family("first_step_seconds", "Time from the job's start to its first step.")
    unsaved = family(
        "checkpoint_age_seconds",
        "Age of the newest checkpoint of a job that trains; before the first one, since its start.",
    )
    for job in jobs:
        metadata, status = job["metadata"], _status(job)
        name = (metadata.get("namespace", ""), metadata["name"])
        progress, counts = status.get("progress") or {}, status.get("restarts") or {}
        seconds = status.get("stateSeconds") or {}
        _add(step, name, progress.get("step"))
        _add(speed, name, progress.get("examplesPerSecond"))
        _add(lost, name, counts.get("stepsLost"))
        if progress:
            _add(slow, name, len(status.get("stragglers") or ()))
        for kind in _RESTARTS:
            _add(restarts, (*name, kind), counts.get(kind))
        for kind in _SPENT:
            _add(spent, (*name, kind), seconds.get(kind))
        if status.get("completionTime"):
            continue
        created, started = _time(metadata.get("creationTimestamp")), _time(status.get("startTime"))
        saved = _time((status.get("output") or {}).get("checkpointTime"))
        word = status.get("state") or "New"
        _add(queue, name, _between(created, started or now))
        _add(state, (*name, word), _between(_time(seconds.get("since")) or created, now))
        _add(first, name, _between(started, _time(status.get("firstStepTime"))))
        if word in _TRAINS and "step" in progress:
            _add(unsaved, name, _between(saved or started, now))
    return families


def _time(timestamp: object) -> float | None:
    try:
        return datetime.fromisoformat(timestamp).timestamp() if isinstance(timestamp, str) else None
    except ValueError:  # damaged by a manual edit: the other jobs' figures must not go with it
        return None


def _between(begin: float | None, end: float | None) -> float | None:
    return max(0.0, end - begin) if begin is not None and end is not None else None


def _add(family: GaugeMetricFamily, labels: tuple[str, ...], value: object) -> None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        family.add_metric(labels, value)


def _status(job: Manifest) -> Mapping[str, Any]:
    return job.get("status") or {}


class Metrics:
    """The metrics of one process, in their own registry.

    Series with labels exist from the start, with 0, where all labels are known: Prometheus sees no increase
    in a series that begins with its first event.

    Args:
        clock: returns Unix seconds.

    Attributes:
        leader: 1 if this replica leads.
        tasks, depth: read from functions at every scrape.
        jobs: returns all jobs; called at every scrape.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.jobs: Callable[[], Iterable[Manifest]] | None = None
        self._rendering: asyncio.Future[bytes] | None = None
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

        def counter(name: str, text: str, label: str, values: Iterable[str]) -> Counter:
            made = Counter(name, text, (label,), registry=registry)
            for value in values:
                made.labels(value)
            return made

        def histogram(name: str, text: str, buckets: tuple[float, ...], *label: str) -> Histogram:
            return Histogram(name, text, label, buckets=buckets, registry=registry)

        build = Gauge(
            "trainjob_build_info", "The version of the controller.", ("version",), registry=registry
        )
        build.labels(version("trainjob")).set(1)
        self.leader = Gauge("trainjob_leader", "Whether this replica is the leader.", registry=registry)
        self.tasks = Gauge("trainjob_tasks", "Tasks of the event loop.", registry=registry)
        self.depth = Gauge("trainjob_queue_depth", "Jobs that wait for a worker.", registry=registry)
        self._wait = histogram(
            "trainjob_queue_seconds", "Time that a job waited for a worker.", _RECONCILE_BUCKETS
        )
        self._reconcile = histogram(
            "trainjob_reconcile_seconds",
            "Time of one reconciliation of one job, from its first read to its last write.",
            _RECONCILE_BUCKETS,
        )
        self._requests = Counter(
            "trainjob_api_requests",
            "Requests to the API server; code 0 means no response.",
            ("verb", "resource", "code"),
            registry=registry,
        )
        self._restarts = counter(
            "trainjob_watch_restarts",
            "Watches that ended early.",
            "resource",
            (resource.plural for resource in (TRAINJOBS, *DEPENDENTS)),
        )
        self._agent_calls = counter(
            "trainjob_agent_calls",
            "Calls to the jobs' agents: answered, unreachable, or refused: the peer isn't an agent with "
            "this controller's key.",
            "outcome",
            get_args(Outcome),
        )
        self._agent_seconds = histogram(
            "trainjob_agent_call_seconds", "Time of one call to an agent that answered.", _AGENT_CALL_BUCKETS
        )
        self._admission = histogram(
            "trainjob_admission_seconds", "Time from a job's creation until it was started.", _JOB_BUCKETS
        )
        self._first_step = histogram(
            "trainjob_first_step_seconds", "Time from a job's start to its first step.", _JOB_BUCKETS
        )
        self._training_again = histogram(
            "trainjob_restart_seconds",
            "Time from the end of training until all replicas train again.",
            _JOB_BUCKETS,
            "after",
        )
        for cause in _RESTART_CAUSES:
            self._training_again.labels(cause)
        self._finished = counter(
            "trainjob_jobs_finished", "Jobs that have finished.", "state", ("Complete", "Failed")
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

    def count_wait(self, seconds: float) -> None:
        """Record the time that a job waited for a worker."""
        self._wait.observe(seconds)

    def count_changes(self, observed: Observed, status: TrainJobStatus) -> None:
        """Count what a status that was written just now records for the first time.

        The call must follow the write: one controller's write of a change succeeds, so the change is counted
        once, also when a controller restarts or another one takes over.
        """
        before, created = observed.status, observed.meta.creation_timestamp
        if before.start_time is None and status.start_time is not None and created is not None:
            self._admission.observe(_length(created, status.start_time))
        if before.first_step_time is None and status.first_step_time and status.start_time:
            self._first_step.observe(_length(status.start_time, status.first_step_time))
        if (before.state, status.state) == ("Restarting", "Running"):
            begin, end = before.state_seconds.since, status.state_seconds.since
            if begin is not None and end is not None:
                condition = find_condition(before, RESTARTING)
                causes = {RESIZED: "resize", START_TIMEOUT: "start timeout"}
                cause = causes.get(condition.reason, "failure") if condition is not None else "failure"
                self._training_again.labels(cause).observe(_length(begin, end))
        if before.completion_time is None and status.completion_time is not None and status.state:
            self._finished.labels(status.state).inc()

    async def render(self) -> bytes:
        """Return all metrics in Prometheus' text format.

        Scrapes at the same time share one page: it takes a second of the event loop with ten thousand jobs,
        and those who ask again because they had no answer in time must not make it take longer.
        """
        if self._rendering is None or self._rendering.done():
            self._rendering = asyncio.ensure_future(self._render())
        return await asyncio.shield(self._rendering)

    async def _render(self) -> bytes:
        of_process = generate_latest(self._registry)
        return of_process if self.jobs is None else of_process + await render_jobs(self.jobs(), self._clock)


def _length(begin: datetime, end: datetime) -> float:
    """Return the seconds between; 0 if two clocks differ by more than that."""
    return max(0.0, (end - begin).total_seconds())
