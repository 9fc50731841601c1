"""The display of a run: plain lines, or a live display on a terminal."""

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainjob.api import FirstFailure
from trainjob.cli.view import JobView, ReplicaView
from trainjob.core.agent_reports import EvaluationResult
from trainjob.core.stragglers import describe, describe_input
from trainjob.core.wording import short_duration

# Numbers in readable form.


_SHARES = ("accuracy", "acc", "precision", "recall", "auc")


def format_metric(name: str, value: float | str) -> str:
    """Return `accuracy 97.5 %` or `loss 0.0812`; a status has the values as text, also `nan`."""
    try:
        number = float(value)
    except ValueError:
        return f"{name} {value}"
    if not math.isfinite(number):
        return f"{name} {number}"
    if name.lower().endswith(_SHARES) and 0 <= number <= 1:
        return f"{name} {100 * number:.1f} %"
    return f"{name} {number:.4g}"


def format_rate(rate: float) -> str:
    """Return examples per second, such as `1,250`."""
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


# Changes between two views of a job, one line each, for output without a live display.


# These states change with every checkpoint; only their results are printed.
_PASSING_STATES = ("preparing", "saving", "evaluating")
_BETWEEN = ("training", "waiting")


def describe_changes(before: JobView | None, after: JobView) -> tuple[str, ...]:
    """Return the lines about the changes from `before` to `after`; `before` is None at the start."""
    return tuple(_lines(before, after))


def describe_evaluation(evaluation: EvaluationResult) -> str:
    """Return `step 440: accuracy 97.5 %, loss 0.0812`."""
    metrics = ", ".join(format_metric(name, value) for name, value in evaluation.metrics.items())
    return f"step {evaluation.step}: {metrics or 'no metrics'}"


def resumed_from(view: JobView) -> int | None:
    """Return the step that training resumed from, or None if it started at the beginning."""
    steps = (replica.report.resumed_from for replica in view.replicas)
    return next((step for step in steps if step), None)


def _lines(before: JobView | None, after: JobView) -> Iterator[str]:
    failure = _failure_between(before, after) if before is not None else None
    if failure is not None:
        yield f"{after.name}: Restarting: {failure.message}"
    known = None if before is None else (before.status.state, before.message)
    if after.status.state and known != (after.status.state, after.message):
        yield f"{after.name}: {after.state}" + (f": {after.message}" if after.message else "")
    old = {replica.name: replica for replica in before.replicas} if before else {}
    for replica in after.replicas:
        yield from _replica_lines(old.get(replica.name), replica)
    step = resumed_from(after)
    again = before is None or before.status.attempt != after.status.attempt or resumed_from(before) != step
    if step is not None and again:
        yield f"{after.name}: resumed from step {step}"
    slow_before = {straggler.replica for straggler in before.status.stragglers} if before else set()
    for straggler in after.status.stragglers:
        if straggler.replica not in slow_before:
            yield f"{after.name}: {describe(straggler)}"
    evaluation = after.evaluation
    if evaluation is not None and (before is None or before.evaluation != evaluation):
        final = ", final checkpoint" if evaluation.final else ""
        yield f"{after.name}: evaluation at {describe_evaluation(evaluation)}{final}"


def _failure_between(before: JobView, after: JobView) -> FirstFailure | None:
    """Return a failure that `after` doesn't show any more: agents may restart training between two views."""
    failure = after.status.first_failure
    is_new = after.status.restarts.last_time != before.status.restarts.last_time
    is_told = failure == before.status.first_failure or (failure and failure.message == after.message)
    return failure if is_new and not is_told else None


def _replica_lines(before: ReplicaView | None, after: ReplicaView) -> Iterator[str]:
    if before is not None and (before.state, before.pod) == (after.state, after.pod):
        return
    if after.state in _PASSING_STATES or after.pod is None:
        return
    is_same_pod = before is not None and before.pod == after.pod
    if before is not None and is_same_pod and before.state in _PASSING_STATES and after.state in _BETWEEN:
        return
    of = f", step {after.report.step}" if after.report.step else ""
    total = f" of {after.report.total_steps}" if of and after.report.total_steps else ""
    yield f"{after.name}: {after.state}{of}{total}"


# A job's view for the live display.


_BAR_WIDTH = 10
_STEPPING = ("training", "saving")
"""In other states the figures of the last step are out of date."""
_SHOWN_STRAGGLERS = 3

_STYLES = {
    "training": "green",
    "evaluating": "green",
    "saving": "green",
    "preparing": "green",
    "finished": "bold green",
    "Running": "green",
    "Complete": "bold green",
    "Failed": "bold red",
    "Restarting": "yellow",
    "stopping": "yellow",
}


def draw(view: JobView, lines: Iterable[tuple[str, str]] = ()) -> RenderableType:
    """Return the display: header, replicas, latest evaluation, and the given last lines of logs."""
    parts: list[RenderableType] = [_header(view)]
    if view.message:
        parts.append(Text(view.message, overflow="ellipsis"))
    parts.append(_table(view))
    parts += [Text(describe(each), style="yellow") for each in view.status.stragglers[:_SHOWN_STRAGGLERS]]
    if (told := _input(view.replicas)) is not None:
        parts.append(Text(told, style="yellow"))
    if view.evaluation is not None:
        final = " (final)" if view.evaluation.final else ""
        parts.append(Text(f"evaluation at {describe_evaluation(view.evaluation)}{final}"))
    for replica, line in lines:
        text = Text(no_wrap=True, overflow="ellipsis")
        parts.append(text.append(f"{replica} | ", style="dim").append(line))
    return Group(*parts)


def _header(view: JobView) -> Text:
    text = Text.assemble((view.name, "bold"), "  ", (view.state, _STYLES.get(view.state, "")))
    facts = [f"attempt {view.status.attempt or 1}", short_duration(view.elapsed)]
    if view.restarts:
        facts.insert(1, f"{view.restarts} restart{'' if view.restarts == 1 else 's'}")
    step = resumed_from(view)
    if step:
        facts.append(f"resumed from step {step}")
    return text.append("  " + "  ".join(facts), style="dim")


def _input(replicas: Iterable[ReplicaView]) -> str | None:
    reports = {each.name: each.report for each in replicas if each.state in _STEPPING}
    return describe_input(
        {name: report.step_seconds for name, report in reports.items()},
        {name: report.input_seconds for name, report in reports.items()},
    )


def _table(view: JobView) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("replica", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("", width=_BAR_WIDTH)
    for name in ("epoch", "loss", "examples/s", "saved at"):
        table.add_column(name, justify="right", no_wrap=True)
    for replica in view.replicas:
        table.add_row(*_row(replica))
    return table


def _row(replica: ReplicaView) -> list[RenderableType]:
    report = replica.report
    style = "bold red" if replica.has_failed else _STYLES.get(replica.state, "")
    return [
        Text(replica.name),
        Text(replica.state, style=style),
        Text(_of(report.step, report.total_steps)),
        _bar(report.step, report.total_steps),
        Text(_of(report.epoch, report.total_epochs)),
        Text("" if report.loss is None else f"{report.loss:.4f}"),
        Text("" if report.examples_per_second is None else format_rate(report.examples_per_second)),
        Text("" if report.checkpoint_step is None else str(report.checkpoint_step)),
    ]


def _of(done: int | None, total: int | None) -> str:
    if done is None:
        return ""
    return f"{done}" if total is None else f"{done}/{total}"


def _bar(done: int | None, total: int | None) -> RenderableType:
    if done is None or not total:
        return Text("")
    return ProgressBar(total=total, completed=min(done, total), width=_BAR_WIDTH)


_SHOWN_LOG_LINES = 8


class Screen(Protocol):
    """The display of a run; no method raises."""

    def note(self, text: str) -> None:
        """Show one line about the run itself."""

    def line(self, replica: str, text: str) -> None:
        """Show one line of a replica's log."""

    def show(self, view: JobView) -> None:
        """Show the current state of the job."""

    def close(self) -> None:
        """Restore the terminal."""


class PlainScreen:
    """Prints changes line by line, for log files and other programs.

    Args:
        stream: the output, or None for stdout.
        on_gone: called once when the reader is gone, as after `| head`.
    """

    def __init__(self, stream: TextIO | None = None, on_gone: Callable[[], None] = lambda: None) -> None:
        self._stream = stream or sys.stdout
        self._on_gone = on_gone
        self._gone = False
        self._view: JobView | None = None

    def note(self, text: str) -> None:
        """Print a line about the run itself."""
        self._print([f"trainjob: {text}"])

    def line(self, replica: str, text: str) -> None:
        """Print a line of a replica's log after the replica's name."""
        self._print([f"{replica}: {text}"])

    def show(self, view: JobView) -> None:
        """Print the changes since the last view."""
        self._print(f"trainjob: {text}" for text in describe_changes(self._view, view))
        self._view = view

    def close(self) -> None:
        """Do nothing: the terminal is unchanged."""

    def _print(self, lines: Iterable[str]) -> None:
        if self._gone:
            return
        try:
            for line in lines:
                self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            self._gone = True
            self._on_gone()


class LiveScreen:
    """A live display that is redrawn in place; lines about the run itself scroll above it."""

    def __init__(self) -> None:
        self._lines: deque[tuple[str, str]] = deque(maxlen=_SHOWN_LOG_LINES)
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()

    def note(self, text: str) -> None:
        """Print a line above the display."""
        with suppress(OSError):
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def line(self, replica: str, text: str) -> None:
        """Keep the line for the next redraw."""
        self._lines.append((replica, text))

    def show(self, view: JobView) -> None:
        """Draw the job."""
        with suppress(OSError):  # the terminal is closed: a signal ends the run
            self._live.update(draw(view, self._lines), refresh=True)

    def close(self) -> None:
        """Leave the last display in place and restore the cursor."""
        with suppress(OSError):
            self._live.stop()
