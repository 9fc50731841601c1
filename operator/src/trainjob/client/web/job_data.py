"""What the page shows of a job, as JSON: sentences and figures as commands print them, and curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from trainjob.client.history import History, thin_out
from trainjob.client.page import JobHistory, ReplicaRow, build_page, cells_of
from trainjob.client.presenter import Results, describe_end, format_metric
from trainjob.client.view import JobView, Outcome
from trainjob.cluster.protocol import Manifest, PostedEvent
from trainjob.core.pods import Pod, event_time
from trainjob.core.wording import printable

Json = dict[str, Any]


def describe_row(key: str, job: JobView, place: str, began: datetime | None) -> Json:
    """Return a job's row in the list.

    Args:
        key: what the page calls the job.
        job: its current state.
        place: where it runs.
        began: when the run began, or the job was created.
    """
    page, cells = build_page(job), cells_of(job)
    return {
        "key": key,
        "name": page.name,
        "place": place,
        "state": page.state,
        "tone": page.tone,
        "message": page.message,
        "steps": cells["STEP"],
        "share": page.share,
        "score": printable(cells["SCORE"]),
        "began": began.isoformat() if began is not None else None,
    }


def describe_details(
    job: JobView,
    row: Json,
    history: JobHistory,
    curves: History,
    *,
    pods: Iterable[Pod] = (),
    events: Iterable[PostedEvent] = (),
    results: Results,
    notes: Iterable[str] = (),
) -> Json:
    """Return what the page shows of the job that is chosen: its row, and much more.

    Args:
        job: its current state.
        row: see `describe_row`.
        history: of its earlier views, this one included.
        curves: its metrics over the steps.
        pods: of a job in a cluster: its newest pods.
        events: about it, in any order.
        results: where its output is.
        notes: sentences about what can't be shown.
    """
    page = build_page(job, history, pods=pods, results=results)
    has_failure = job.outcome is Outcome.FAILED or job.status.first_failure is not None
    return row | {
        "facts": page.rows,
        "replicas": [_replica(each) for each in page.replicas],
        "events": [
            {
                "at": event.at.isoformat(),
                "warning": event.type == "Warning",
                "reason": printable(event.reason),
                "message": printable(event.message),
            }
            for event in sorted(events, key=lambda event: event.at, reverse=True)
        ],
        "end": list(map(printable, describe_end(job, results))) if job.is_over and has_failure else [],
        "curves": _figures(curves),
        "notes": list(map(printable, notes)),
    }


def _replica(row: ReplicaRow) -> Json:
    cells = row.cells
    of_pod = f"{cells['step time']} a step" if cells.get("step time") else ""
    return {
        "name": cells["replica"],
        "state": cells["state"],
        "steps": cells.get("step") or of_pod,
        "detail": ", ".join(f"{title} {cells[title]}" for title in ("loss", "node") if cells.get(title)),
        "failed": row.tone == "bad",
    }


def read_event(manifest: Manifest) -> PostedEvent:
    """Return an Event object of a cluster; how often it has happened stands in the message."""
    message, count = str(manifest.get("message") or ""), manifest.get("count")
    often = f" ({count} times)" if isinstance(count, int) and count > 1 else ""
    kind, reason = str(manifest.get("type") or ""), str(manifest.get("reason") or "")
    return PostedEvent(event_time(manifest), kind, reason, message + often)


# Curves: a figure for each metric, with the values of training and of validation.


_MOST_POINTS = 600
_VALIDATION = "val_"


def _figures(curves: History) -> Sequence[Json]:
    """Return the metrics: the loss, then those that are validated, then the others."""
    names = dict.fromkeys(name.removeprefix(_VALIDATION) for name in curves)
    ordered = sorted(names, key=lambda name: (name != "loss", _VALIDATION + name not in curves))
    labels = {"training": "", "validation": _VALIDATION}
    return [
        {
            "name": printable(name),
            "percent": format_metric(name, 1.0).endswith("%"),
            "series": [
                {"label": label, "points": thin_out(curves[prefix + name], _MOST_POINTS)}
                for label, prefix in labels.items()
                if curves.get(prefix + name)
            ],
        }
        for name in ordered
    ]
