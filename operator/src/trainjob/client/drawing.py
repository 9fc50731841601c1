"""A job as it is drawn: its page on a terminal and in a notebook, and the output of a call that waits."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from io import StringIO
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainjob.client.history import History, metric_names, thin_out
from trainjob.client.page import JobHistory, Page, build_page
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
from trainjob_trainer.contract.reports import shorten

_LONGEST_BAR = 20
_SHOWN_STRAGGLERS = 3
_WIDE = 64
"""From this width on, the table has the loss."""

_STYLES = {"busy": "green", "good": "bold green", "bad": "bold red", "warning": "yellow"}


def draw_page(page: Page, below: Iterable[RenderableType] = (), width: int = 80) -> RenderableType:
    """Return header, figures, replicas, warnings and last events for so many columns; `below` comes last."""
    header = Text.assemble((page.name, "bold"), "  ", (page.state, _STYLES.get(page.tone, "")))
    parts: list[RenderableType] = [header.append("  " + "  ".join(page.about), style="dim")]
    parts += [Text(page.message)] if page.message else []
    if page.training:
        line = Table.grid(padding=(0, 2, 0, 0))
        bar = ProgressBar(total=1.0, completed=page.share or 0.0, width=min(width // 5, _LONGEST_BAR))
        line.add_row(*([bar] if page.share is not None else []), _phrases(page.training))
        parts.append(line)
    if page.metrics:
        parts.append(_phrases(page.metrics))
    parts += [Text(f"evaluation at {text}") for text in page.texts("evaluation")]
    parts += [Text(f"best:  {text}") for text in page.texts("best")]
    if page.replicas:
        parts.append(_table(page, width))
    warnings = (*page.texts("straggler")[:_SHOWN_STRAGGLERS], *page.texts("input"), *page.events)
    return Group(*parts, *(Text(text, style="yellow") for text in warnings), *below)


def _phrases(phrases: Iterable[str]) -> Text:
    """Return the phrases as one text that breaks only between them."""
    return Text("  ".join(phrase.replace(" ", "\N{NO-BREAK SPACE}") for phrase in phrases))


def _table(page: Page, width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    titles = ("replica", "state", "step", "loss")[: 4 if width >= _WIDE else 3]
    for title in titles:
        right = title in ("step", "loss")
        table.add_column(title, justify="right" if right else "left", no_wrap=True, overflow="ellipsis")
    for row in page.replicas:
        style = _STYLES.get(row.tone, "")
        table.add_row(*(Text(row.cells[title], style if title == "state" else "") for title in titles))
    return table


Curve = Mapping[int, float]
"""Values by step."""

_SHOWN_EVENTS = 5
_COLUMNS = 100


def to_html(
    job: JobView, place: str, curve: Curve, events: Sequence[str] = (), history: JobHistory | None = None
) -> str:
    """Return a job's page and the curve of its loss as HTML; without events its conditions are shown."""
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
    below = [f"{name}  {text}" for name, text in page.rows if name in ("request", "notice")]
    below += map(printable, describe_failure(job, results)) if job.outcome is Outcome.FAILED else ()
    console = Console(
        record=True,
        width=_COLUMNS,
        file=StringIO(),
        force_terminal=True,
        force_jupyter=False,  # in a notebook it would display what it records
        color_system="truecolor",
    )
    console.print(draw_page(page, map(Text, below), _COLUMNS))  # every text is only text
    style = "margin:0;line-height:normal;white-space:pre;overflow-x:auto"
    html = console.export_html(inline_styles=True, code_format=f'<pre style="{style}">{{code}}</pre>')
    return f"<div>{html}{draw_curve(curve)}</div>"


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


# Charts of several runs, as a file. Its background is that of the page that shows it: each colour has a
# contrast of 4 or more on white and on black.


_COLOURS = ("#1f78e0", "#c2570c", "#1a8f45", "#a050e0", "#d1357f", "#8f7614")
_DASHES = ("", ' stroke-dasharray="7 3"', ' stroke-dasharray="2 3"')
"""After all colours have been used, and after all of them once more."""

_CHART_WIDTH, _CHART_HEIGHT, _CHARTS_A_ROW = 380, 190, 2
_LEGEND_HEIGHT, _MOST_LETTERS, _LETTER = 18, 100, 6.2
_MOST_CIRCLES = 40
_LARGEST = 1e300


def draw_charts(runs: Sequence[tuple[str, History]]) -> str:
    """Return a file of SVG with a chart for each metric and a line for each run; nothing without any value.

    Args:
        runs: labels for the legend, and curves.
    """
    charts: list[str] = []
    names = metric_names(name for _, curves in runs for name in curves)
    for name in (f"{prefix}{name}" for name in names for prefix in ("", "val_")):
        curves = [thin_out(curves.get(name, {}), _MOST_POINTS) for _, curves in runs]
        curves = [[(step, value) for step, value in curve if abs(value) < _LARGEST] for curve in curves]
        if any(curves):
            charts.append(_draw_chart(name, curves))
    if not charts:
        return ""
    legend = [
        f'<path d="M8 {y}h24" fill="none" stroke-width="2"{_stroke(index)}/>'
        f'<text x="40" y="{y + 4}">{_written(label)}</text>'
        for index, (label, _) in enumerate(runs)
        for y in [_LEGEND_HEIGHT * index + 14]
    ]
    top = _LEGEND_HEIGHT * len(runs) + 20
    placed = [
        f'<g transform="translate({_CHART_WIDTH * column},{top + _CHART_HEIGHT * row})">{chart}</g>'
        for index, chart in enumerate(charts)
        for row, column in [divmod(index, _CHARTS_A_ROW)]
    ]
    width = _CHART_WIDTH * _CHARTS_A_ROW
    height = top + _CHART_HEIGHT * math.ceil(len(charts) / _CHARTS_A_ROW)
    parts = "\n".join((*legend, *placed))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="12" fill="#747c86">\n'
        f"<title>{_written(', '.join(names))}</title>\n{parts}\n</svg>\n"
    )


def _draw_chart(name: str, curves: Sequence[Sequence[tuple[int, float]]]) -> str:
    steps = [step for curve in curves for step, _ in curve]
    first, last = min(steps), max(steps)
    values = [value for curve in curves for _, value in curve]
    ticks = _ticks(min(values), max(values))
    is_share = format_metric(name, max(values)).endswith("%")
    digits = max(0, -math.floor(math.log10((ticks[1] - ticks[0]) * (100 if is_share else 1)) + 1e-9))
    form = f".{digits}f" if digits < 6 and abs(ticks[-1]) < 1e6 else ".4g"
    labels = [f"{100 * tick:{form}} %" if is_share else f"{tick:{form}}" for tick in ticks]
    left = 14 + _LETTER * max(map(len, labels))
    right, top, bottom = _CHART_WIDTH - 16, 24, _CHART_HEIGHT - 30

    def x(step: int) -> float:
        return left + (right - left) * ((step - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return bottom - (bottom - top) * (value - ticks[0]) / (ticks[-1] - ticks[0])

    axes = [
        f'<path d="M{left:.1f} {y(tick):.1f}H{right}" stroke="#747c86" stroke-opacity="0.3"/>'
        f'<text x="{left - 6:.1f}" y="{y(tick) + 4:.1f}" text-anchor="end">{label}</text>'
        for tick, label in zip(ticks, labels, strict=True)
    ]
    axes.append(f'<text x="{left:.1f}" y="{bottom + 16}">step {first}</text>')
    if last > first:
        axes.append(f'<text x="{right}" y="{bottom + 16}" text-anchor="end">{last}</text>')
    lines = [
        f'<polyline points="{" ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in curve)}" '
        f'fill="none" stroke-width="1.6" stroke-linejoin="round"{_stroke(index)}/>'
        + "".join(
            f'<circle cx="{x(step):.1f}" cy="{y(value):.1f}" r="2" fill="{_COLOURS[index % len(_COLOURS)]}"/>'
            for step, value in (curve if len(curve) <= _MOST_CIRCLES else ())
        )
        for index, curve in enumerate(curves)
        if curve
    ]
    title = f'<text x="{left:.1f}" y="14" font-weight="bold">{_written(name)}</text>'
    return "".join((title, *axes, *lines))


def _ticks(low: float, high: float) -> list[float]:
    """Return three to five round numbers around these, the first not above and the last not below them."""
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-90):
        room = (abs(low) if abs(low) > 1e-90 else 1.0) / 10
        low, high = low - room, high + room
    power = 10.0 ** math.floor(math.log10((high - low) / 3))
    size = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= (high - low) / 3)
    return [number * size for number in range(math.floor(low / size), math.ceil(high / size) + 1)]


def _stroke(index: int) -> str:
    dashes = _DASHES[index // len(_COLOURS) % len(_DASHES)]
    return f' stroke="{_COLOURS[index % len(_COLOURS)]}"{dashes}'


def _written(text: str) -> str:
    return escape(shorten(printable(" ".join(text.split())), _MOST_LETTERS))


# The output of a call that waits: a display that is updated in place, or lines.


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

    IPython's function `display` returns a handle that can be updated.
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


def open_display(place: str, curve: Curve, clock: Callable[[], float]) -> Lines | Cell:
    """Return the display for where this process runs: a cell's output in a notebook, lines elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and hasattr(shell, "kernel"):
        from IPython.display import display  # noqa: PLC0415 - only a notebook has it

        return Cell(place, curve, display, clock)
    return Lines(clock)
