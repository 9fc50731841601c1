"""A job as a notebook shows it, and the output of a call that waits for one."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any, Protocol

from trainjob.client.history import thin_out
from trainjob.client.page import JobHistory, build_page
from trainjob.client.presenter import (
    IN_PYTHON,
    describe_changes,
    describe_failure,
    describe_figures,
    describe_progress,
    describe_state,
    format_metric,
    results_of,
    time_of_day,
)
from trainjob.client.view import JobView, Outcome
from trainjob.core.wording import printable

Curve = Mapping[int, float]
"""Values by step."""

_SHOWN_EVENTS = 5


# One job as HTML.


def to_html(
    job: JobView, place: str, curve: Curve, events: Sequence[str] = (), history: JobHistory | None = None
) -> str:
    """Return a job's page and the curve of its loss as HTML.

    Args:
        job: the job.
        place: where it runs.
        curve: the loss by step.
        events: its last events, one line each; without them its conditions are shown.
        history: of its earlier views, this one included.
    """
    from trainjob.client.drawing import draw_html  # noqa: PLC0415 - slow to import, and only for a notebook

    results = results_of(job)
    results = replace(results, advice=IN_PYTHON) if job.folder else results
    page = build_page(job, history, results=results, grouped=True)
    where = f"on {place}" if place == "this machine" else f"in {place}"
    conditions = sorted(job.status.conditions, key=lambda condition: condition.last_transition_time)
    shown = events or [
        f"{time_of_day(each.last_transition_time)} {each.type}: {each.message or each.reason}"
        for each in conditions
        if each.status == "True"
    ]
    last = tuple(map(printable, shown[-_SHOWN_EVENTS:]))
    page = replace(page, about=(printable(where), *page.about), events=last)
    below = [f"notice  {text}" for text in page.texts("notice")]
    below += map(printable, describe_failure(job, results)) if job.outcome is Outcome.FAILED else ()
    return f"<div>{draw_html(page, below)}{draw_curve(curve)}</div>"


_WIDTH, _HEIGHT, _MOST_POINTS = 240, 56, 240


def draw_curve(curve: Curve, name: str = "loss") -> str:
    """Return the curve as inline SVG; nothing for fewer than two finite values."""
    points = thin_out(dict(sorted(curve.items())), _MOST_POINTS)
    if len(points) < 2:
        return ""
    (first, _), (last, latest) = points[0], points[-1]
    low, high = min(v for _, v in points), max(v for _, v in points)
    path = " ".join(
        f"{_WIDTH * (step - first) / (last - first):.1f},"
        f"{_HEIGHT * (1 - (0.5 if high == low else (v - low) / (high - low))):.1f}"
        for step, v in points
    )
    value = escape(printable(format_metric(name, latest)))
    return (
        f'<svg role="img" width="{_WIDTH}" height="{_HEIGHT + 18}" viewBox="0 -2 {_WIDTH} {_HEIGHT + 18}">'
        f"<title>{value} at step {last}, from {high:.4g} to {low:.4g}</title>"
        f'<polyline points="{path}" fill="none" stroke="#0969da" stroke-width="1.5"/>'
        f'<text x="0" y="{_HEIGHT + 14}" font-size="11" fill="#777">{value}</text></svg>'
    )


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
        self._place, self._curve, self._display, self._clock = place, curve, display, clock
        self._events = deque[str](maxlen=_SHOWN_EVENTS)
        self._history = JobHistory()
        self._job: JobView | None = None
        self._handle: Any = None
        self._updated_at = 0.0

    def show(self, job: JobView) -> None:
        """Update the cell."""
        lines = describe_changes(self._job, job) if self._job else ()
        self._events.extend(line.removeprefix(f"{job.name}: ") for line in lines)
        self._job = job
        self._history.observe(job)
        is_soon = self._handle is not None and self._clock() - self._updated_at < self._SECONDS
        if is_soon and not lines and not job.is_over:
            return
        self._updated_at = self._clock()
        curve = {**self._curve, **self._history.curves.get("loss", {})}
        html = to_html(job, self._place, curve, tuple(self._events), self._history)
        bundle = {"text/html": html, "text/plain": printable(f"{job.name}: {describe_state(job)}")}
        if self._handle is None:
            self._handle = self._display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def open_display(place: str, curve: Curve, clock: Callable[[], float]) -> Display:
    """Return the display for where this process runs: a cell's output in a notebook, lines elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and hasattr(shell, "kernel"):
        from IPython.display import display  # noqa: PLC0415 - only a notebook has it

        return Cell(place, curve, display, clock)
    return Lines(clock)
