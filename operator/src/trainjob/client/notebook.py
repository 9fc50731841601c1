"""A job as a notebook shows it, and the output of a call that waits for one."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, Protocol

from trainjob.client.presenter import (
    describe_changes,
    describe_evaluation,
    describe_figures,
    describe_metrics,
    describe_progress,
    describe_state,
    format_count,
    format_metric,
    format_rate,
)
from trainjob.client.view import JobView, Outcome, current_metrics, current_step, reporting_replica
from trainjob.core.wording import printable, short_duration

Curve = Mapping[int, float]
"""Values by step."""


# One job as HTML. Every text may come from a pod.


_STYLE = "font-family:system-ui,sans-serif;font-size:13px;max-width:52em"
_MUTED = "color:#777"
_COLOURS = {
    "Complete": "#1a7f37",
    "Running": "#1a7f37",
    "Failed": "#cf222e",
    "Restarting": "#9a6700",
    "Waiting for storage": "#9a6700",
}
_SHOWN_EVENTS = 5
_SHOWN_LOG_LINES = 12


def to_html(job: JobView, place: str, curve: Curve, events: Sequence[str] = ()) -> str:
    """Return a job's state, step, time left, curve of the loss, workers and last events.

    Args:
        job: the job.
        place: where it runs.
        curve: the loss by step.
        events: its last events, one line each; without them its conditions are shown.
    """
    colour = _COLOURS.get(job.state, "#777")
    head = (
        f'<b>{_text(job.name)}</b> <b style="color:{colour}">{_text(job.state)}</b> '
        f'<span style="{_MUTED}">{_text(_age(job, place))}</span>'
    )
    parts = [f"<div>{head}</div>"]
    if job.message:
        parts.append(f"<div>{_text(job.message)}</div>")
    facts = "".join(
        f'<tr><td style="{_MUTED};text-align:left;padding:0 1em 0 0">{_text(name)}</td>'
        f'<td style="text-align:left">{_text(value)}</td></tr>'
        for name, value in job_facts(job)
    )
    parts += [f"<div><b>notice</b> {_text(each)}</div>" for each in job.status.notices]
    table = f'<table style="border-collapse:collapse;margin:.4em 0">{facts}</table>' if facts else ""
    parts.append(f'<div style="display:flex;gap:2em;align-items:center">{table}{draw_curve(curve)}</div>')
    lines = list(events)[-_SHOWN_EVENTS:] or list(_conditions(job))[-_SHOWN_EVENTS:]
    parts += [f'<div style="{_MUTED}">{_text(line)}</div>' for line in lines]
    parts.append(_failure(job))
    return f'<div style="{_STYLE}">{"".join(parts)}</div>'


def _age(job: JobView, place: str) -> str:
    elapsed = short_duration(job.elapsed) if job.elapsed is not None else ""
    return ", ".join(filter(None, (f"on {place}" if place == "this machine" else f"in {place}", elapsed)))


def job_facts(job: JobView) -> Iterator[tuple[str, str]]:
    """Yield name and value of each figure."""
    lead, progress = reporting_replica(job), job.status.progress
    report = lead.report if lead is not None else None
    total = report.total_steps if report else progress.total_steps if progress else None
    if (step := current_step(job)) is not None:
        share = f" ({100 * min(step, total) // total} %)" if total else ""
        yield "step", f"{format_count(step, total, ' of ')}{share}"
    if progress is not None and progress.eta and not job.is_over:
        yield "time left", progress.eta
    rate = report.examples_per_second if report else progress.examples_per_second if progress else None
    if rate is not None and not job.is_over:
        yield "examples/s", format_rate(rate)
    metrics = {name: v for name, v in current_metrics(job).items() if not name.startswith("val_")}
    if metrics:
        yield "metrics", describe_metrics(metrics)
    if job.evaluation is not None:
        yield "evaluation", describe_evaluation(job.evaluation)
    if job.checkpoint_step is not None:
        yield "checkpoint", f"step {job.checkpoint_step}"
    if job.replicas:
        yield (
            "replicas",
            ", ".join(f"{each.name} {each.state}" for each in job.replicas[:_SHOWN_EVENTS])
            + (f" and {len(job.replicas) - _SHOWN_EVENTS} more" if len(job.replicas) > _SHOWN_EVENTS else ""),
        )
    elif job.status.worker is not None and job.status.worker.summary:
        yield "workers", f"{job.status.worker.summary} ready"
    restarts = job.status.restarts.counted
    if restarts:
        yield "restarts", str(restarts)


def _conditions(job: JobView) -> Iterator[str]:
    for each in sorted(job.status.conditions, key=lambda condition: condition.last_transition_time):
        if each.status == "True":
            yield f"{each.last_transition_time:%H:%M:%S} {each.type}: {each.message or each.reason}"


def _failure(job: JobView) -> str:
    failure = job.status.first_failure
    if failure is None or job.outcome is not Outcome.FAILED:
        return ""
    tail = "\n".join(failure.log_tail.splitlines()[-_SHOWN_LOG_LINES:])
    node = f" on node {failure.node}" if failure.node else ""
    step = f" at step {failure.step}" if failure.step is not None else ""
    what = f"first failure: {failure.rank or failure.pod}{node}{step}: {failure.reason}"
    log = f'<pre style="margin:.3em 0;white-space:pre-wrap">{_text(tail)}</pre>' if tail else ""
    return f"<div>{_text(what)}</div>{log}"


def _text(text: str) -> str:
    return escape(printable(text))


# The curve.


_WIDTH, _HEIGHT, _MOST_POINTS = 240, 56, 240


def draw_curve(curve: Curve, name: str = "loss") -> str:
    """Return the curve as inline SVG; nothing for fewer than two finite values."""
    points = [(step, v) for step, v in sorted(curve.items()) if v == v and abs(v) != float("inf")]  # noqa: PLR0124
    if len(points) < 2:
        return ""
    stride = -(-len(points) // _MOST_POINTS)
    shown = [*points[:-1:stride], points[-1]]
    first, last = shown[0][0], shown[-1][0]
    low, high = min(v for _, v in shown), max(v for _, v in shown)
    path = " ".join(
        f"{_WIDTH * (step - first) / (last - first):.1f},{_HEIGHT * (1 - _share(v, low, high)):.1f}"
        for step, v in shown
    )
    label = f"{format_metric(name, shown[-1][1])} at step {last}, from {high:.4g} to {low:.4g}"
    return (
        f'<svg role="img" width="{_WIDTH}" height="{_HEIGHT + 18}" viewBox="0 -2 {_WIDTH} {_HEIGHT + 18}">'
        f"<title>{_text(label)}</title>"
        f'<polyline points="{path}" fill="none" stroke="#0969da" stroke-width="1.5"/>'
        f'<text x="0" y="{_HEIGHT + 14}" font-size="11" fill="#777">'
        f"{_text(format_metric(name, shown[-1][1]))}</text></svg>"
    )


def _share(value: float, low: float, high: float) -> float:
    return 0.5 if high == low else (value - low) / (high - low)


# The output of a call that waits: a display that is updated in place, or lines.


class Display(Protocol):
    """Shows a job while a call waits for it."""

    def show(self, job: JobView) -> None:
        """Show its current state."""


class Lines:
    """Prints what changes, one line each, and at most every ten seconds the progress."""

    _SECONDS = 10.0

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._job: JobView | None = None
        self._printed_at, self._figures = clock(), ""

    def show(self, job: JobView) -> None:
        """Print the changes since the last call."""
        lines = list(describe_changes(self._job, job))
        known = self._job.status.notices if self._job else ()
        lines += [f"{job.name}: notice: {each}" for each in job.status.notices if each not in known]
        self._job = job
        figures, now = describe_figures(job), self._clock()
        if lines:
            self._printed_at = now
        elif figures != self._figures and now - self._printed_at >= self._SECONDS:
            self._figures, self._printed_at = figures, now
            lines = [describe_progress(job)]
        for line in lines:
            print(f"trainjob: {printable(line)}", file=sys.stderr, flush=True)


class Cell:
    """The output of a notebook's cell, which is replaced after each change.

    Args:
        place: where the job runs.
        curve: the loss by step so far.
        display: IPython's function; it returns a handle that can be updated.
        clock: returns seconds.
    """

    _SECONDS = 0.5
    """Between two updates that change only figures."""

    def __init__(self, place: str, curve: Curve, display: Any, clock: Callable[[], float]) -> None:
        self._place, self._curve, self._display, self._clock = place, dict(curve), display, clock
        self._events = deque[str](maxlen=_SHOWN_EVENTS)
        self._job: JobView | None = None
        self._handle: Any = None
        self._updated_at = 0.0

    def show(self, job: JobView) -> None:
        """Update the cell."""
        lines = tuple(_without_name(describe_changes(self._job, job), job.name)) if self._job else ()
        self._events.extend(lines)
        self._job = job
        loss, step = current_metrics(job).get("loss"), current_step(job)
        if loss is not None and step is not None:
            self._curve[step] = loss
        is_soon = self._handle is not None and self._clock() - self._updated_at < self._SECONDS
        if is_soon and not lines and not job.is_over:
            return
        self._updated_at = self._clock()
        html = to_html(job, self._place, self._curve, tuple(self._events))
        bundle = {"text/html": html, "text/plain": printable(f"{job.name}: {describe_state(job)}")}
        if self._handle is None:
            self._handle = self._display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def _without_name(lines: Iterable[str], name: str) -> Iterator[str]:
    yield from (line.removeprefix(f"{name}: ") for line in lines)


def open_display(place: str, curve: Curve, clock: Callable[[], float]) -> Display:
    """Return the display for where this process runs: a cell's output in a notebook, lines elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and hasattr(shell, "kernel"):
        from IPython.display import display  # noqa: PLC0415 - only a notebook has it

        return Cell(place, curve, display, clock)
    return Lines(clock)
