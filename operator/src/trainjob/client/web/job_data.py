"""What the page shows of a job, as JSON: sentences and figures as commands print them, and curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from trainjob.client.display import History as Display
from trainjob.client.display import describe_best
from trainjob.client.history import History
from trainjob.client.notebook import job_facts
from trainjob.client.presenter import (
    Results,
    brief_message,
    describe_end,
    format_count,
    format_metric,
    main_metric,
)
from trainjob.client.view import (
    JobView,
    Outcome,
    current_metrics,
    current_step,
    describe_pod,
    reporting_replica,
)
from trainjob.cluster.protocol import Manifest, PostedEvent
from trainjob.core.pods import Pod, event_time
from trainjob.core.progress import WAITING_FOR_STORAGE
from trainjob.core.wording import printable, short_duration

Json = dict[str, Any]

_TONES = {
    "Running": "busy",
    "Evaluating": "busy",
    "Complete": "good",
    "Failed": "bad",
    "Failing": "bad",
    "Restarting": "warning",
    WAITING_FOR_STORAGE: "warning",
    "Interrupted": "warning",
}
"""States by how they are coloured; all others are `idle`."""


def describe_row(key: str, job: JobView, place: str, began: datetime | None) -> Json:
    """Return a job's row in the list.

    Args:
        key: what the page calls the job.
        job: its current state.
        place: where it runs.
        began: when the run began, or the job was created.
    """
    lead, progress = reporting_replica(job), job.status.progress
    total = lead.report.total_steps if lead else progress.total_steps if progress else None
    step, score = current_step(job), job.last_evaluation
    return {
        "key": key,
        "name": printable(job.name),
        "place": place,
        "state": printable(job.state),
        "tone": _TONES.get(job.state, "idle"),
        "message": printable(brief_message(job)),
        "steps": format_count(step, total),
        "share": min(step / total, 1.0) if step is not None and total else None,
        "score": printable(main_metric(score.metrics)) if score is not None else "",
        "began": _time(began),
    }


def describe_details(
    job: JobView,
    row: Json,
    display: Display,
    curves: History,
    *,
    pods: Sequence[Pod] = (),
    events: Iterable[PostedEvent] = (),
    results: Results,
    notes: Iterable[str] = (),
) -> Json:
    """Return what the page shows of the job that is chosen: its row, and much more.

    Args:
        job: its current state.
        row: see `describe_row`.
        display: of its earlier views, this one included.
        curves: its metrics over the steps.
        pods: of a job in a cluster: its newest pods.
        events: about it, in any order.
        results: where its output is.
        notes: sentences about what can't be shown; the job's notices come before them.
    """
    return row | {
        "facts": [[name, printable(value)] for name, value in _facts(job, display, results)],
        "replicas": [*_replicas(job, display), *_pods(job, pods)],
        "events": [_event(each) for each in sorted(events, key=lambda event: event.at, reverse=True)],
        "end": [printable(line) for line in _end(job, results)],
        "curves": [_figure(name, curves) for name in _figures(curves)],
        "notes": [printable(note) for note in (*(f"notice: {n}" for n in job.status.notices), *notes)],
    }


def _facts(job: JobView, display: Display, results: Results) -> Iterable[tuple[str, str]]:
    left = display.time_left(job)
    facts = dict(job_facts(job)) | ({"time left": short_duration(left)} if left is not None else {})
    facts.pop("replicas", None)  # they have a table
    if best := describe_best(job, display):
        facts["best"] = ", ".join(best)
    if results.output:
        facts["output"] = results.output
    return facts.items()


def _end(job: JobView, results: Results) -> Sequence[str]:
    has_failure = job.outcome is Outcome.FAILED or job.status.first_failure is not None
    return describe_end(job, results) if job.is_over and has_failure else ()


# Replicas: of a run here with their figures, of a job in a cluster with their pods.


def _replicas(job: JobView, display: Display) -> Iterable[Json]:
    for each in job.replicas:
        report = each.report
        yield {
            "name": each.name,
            "state": printable(display.phase(each, job)),
            "steps": format_count(report.step, report.total_steps),
            "detail": "" if report.loss is None else f"loss {report.loss:.4g}",
            "failed": each.has_failed,
        }


def _pods(job: JobView, pods: Iterable[Pod]) -> Iterable[Json]:
    progress = job.status.progress
    for pod in pods:
        seconds = progress.step_seconds.get(pod.replica.name) if progress else None
        yield {
            "name": pod.replica.name,
            "state": printable(describe_pod(pod)),
            "steps": "" if seconds is None else f"{seconds:.3g} s a step",
            "detail": printable(f"node {pod.node}" if pod.node else ""),
            "failed": bool(pod.exit_code),
        }


# Events.


def read_event(manifest: Manifest) -> PostedEvent:
    """Return an Event object of a cluster; how often it has happened stands in the message."""
    message, count = str(manifest.get("message") or ""), manifest.get("count")
    often = f" ({count} times)" if isinstance(count, int) and count > 1 else ""
    kind, reason = str(manifest.get("type") or ""), str(manifest.get("reason") or "")
    return PostedEvent(event_time(manifest), kind, reason, message + often)


def _event(event: PostedEvent) -> Json:
    return {
        "at": _time(event.at),
        "warning": event.type == "Warning",
        "reason": printable(event.reason),
        "message": printable(event.message),
    }


# Curves: a figure for each metric, with the values of training and of validation.


_MOST_POINTS = 600
_VALIDATION = "val_"


def _figures(curves: History) -> list[str]:
    """Return the metrics: the loss, then those that are validated, then the others."""
    names = dict.fromkeys(name.removeprefix(_VALIDATION) for name in curves)
    return sorted(names, key=lambda name: (name != "loss", _VALIDATION + name not in curves))


def _figure(name: str, curves: History) -> Json:
    series = {"training": curves.get(name), "validation": curves.get(_VALIDATION + name)}
    return {
        "name": printable(name),
        "percent": format_metric(name, 1.0).endswith("%"),
        "series": [{"label": label, "points": thin_out(curve)} for label, curve in series.items() if curve],
    }


def thin_out(curve: Mapping[int, float], most: int = _MOST_POINTS) -> list[tuple[int, float]]:
    """Return at most about so many finite points of a curve: of each part the smallest and the largest."""
    points = [(step, value) for step, value in curve.items() if math.isfinite(value)]
    if len(points) <= most:
        return points
    size = math.ceil(2 * len(points) / most)
    shown = {points[0], points[-1]}
    for start in range(0, len(points), size):
        part = points[start : start + size]
        shown |= {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
    return sorted(shown)


class Samples:
    """The curves of a job whose output isn't here: what its states have said, one after the other.

    Attributes:
        curves: metrics by name and step.
    """

    _MOST = 4000

    def __init__(self) -> None:
        self.curves: History = {}

    def add(self, job: JobView) -> None:
        """Take the figures of one state; steps that training repeats replace the earlier ones."""
        metrics, evaluation = current_metrics(job), job.last_evaluation
        scored = evaluation.step if evaluation is not None else None
        for name, value in metrics.items():
            step = scored if name.startswith(_VALIDATION) else current_step(job)
            if step is None:
                continue
            curve = self.curves.setdefault(name, {})
            for later in [known for known in curve if known > step]:
                del curve[later]
            curve[step] = value
            if len(curve) > self._MOST:
                self.curves[name] = dict([*curve.items()][::2])


def _time(at: datetime | None) -> str | None:
    return at.isoformat() if at is not None else None
