"""Output on a terminal: the display of a run, log lines in colours, and the progress line."""

from __future__ import annotations

import os
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trainjob.client.presenter import (
    describe_changes,
    describe_evaluation,
    describe_progress,
    describe_resume,
    describe_state,
    format_count,
    format_rate,
)
from trainjob.client.view import JobView, ReplicaView
from trainjob.core.stragglers import describe, describe_input
from trainjob.core.wording import short_duration

if TYPE_CHECKING:
    from trainjob.client.pod_log import LogLine


# The live display of a job.


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


def draw(job: JobView, lines: Iterable[tuple[str, str]] = ()) -> RenderableType:
    """Return the display: header, replicas, latest evaluation, and the given last lines of logs."""
    parts: list[RenderableType] = [_header(job)]
    if job.message:
        parts.append(Text(job.message, overflow="ellipsis"))
    parts.append(_table(job))
    parts += [Text(describe(each), style="yellow") for each in job.status.stragglers[:_SHOWN_STRAGGLERS]]
    if (waiting := _input(job.replicas)) is not None:
        parts.append(Text(waiting, style="yellow"))
    if job.evaluation is not None:
        parts.append(Text(f"evaluation at {describe_evaluation(job.evaluation)}"))
    for replica, line in lines:
        text = Text(no_wrap=True, overflow="ellipsis")
        parts.append(text.append(f"{replica} | ", style="dim").append(line))
    return Group(*parts)


def _header(job: JobView) -> Text:
    text = Text.assemble((job.name, "bold"), "  ", (job.state, _STYLES.get(job.state, "")))
    restarts = job.status.restarts.charged + job.status.restarts.uncharged
    facts = (
        f"attempt {job.status.attempt or 1}",
        f"{restarts} restart{'' if restarts == 1 else 's'}" if restarts else "",
        short_duration(job.elapsed) if job.elapsed is not None else "",
        describe_resume(job),
    )
    return text.append("  " + "  ".join(filter(None, facts)), style="dim")


def _input(replicas: Iterable[ReplicaView]) -> str | None:
    reports = {each.name: each.report for each in replicas if each.state in _STEPPING}
    return describe_input(
        {name: report.step_seconds for name, report in reports.items()},
        {name: report.input_seconds for name, report in reports.items()},
    )


def _table(job: JobView) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("replica", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("", width=_BAR_WIDTH)
    for name in ("epoch", "loss", "examples/s", "saved at"):
        table.add_column(name, justify="right", no_wrap=True)
    for replica in job.replicas:
        table.add_row(*_row(replica))
    return table


def _row(replica: ReplicaView) -> list[RenderableType]:
    report = replica.report
    style = "bold red" if replica.has_failed else _STYLES.get(replica.state, "")
    return [
        Text(replica.name),
        Text(replica.state, style=style),
        Text(format_count(report.step, report.total_steps)),
        _bar(report.step, report.total_steps),
        Text(format_count(report.epoch, report.total_epochs)),
        Text("" if report.loss is None else f"{report.loss:.4f}"),
        Text("" if report.examples_per_second is None else format_rate(report.examples_per_second)),
        Text("" if report.checkpoint_step is None else str(report.checkpoint_step)),
    ]


def _bar(done: int | None, total: int | None) -> RenderableType:
    if done is None or not total:
        return Text("")
    return ProgressBar(total=total, completed=min(done, total), width=_BAR_WIDTH)


# The display of a run: plain lines, or the live display.


_SHOWN_LOG_LINES = 8


class PlainScreen:
    """Prints changes line by line, for log files and other programs.

    Args:
        on_gone: called once when the reader is gone, as after `| head`.
    """

    def __init__(self, on_gone: Callable[[], None]) -> None:
        self._stream = sys.stdout
        self._on_gone = on_gone
        self._gone = False
        self._job: JobView | None = None

    def note(self, text: str) -> None:
        """Print a line about the run itself."""
        self._print([f"trainjob: {text}"])

    def line(self, replica: str, text: str) -> None:
        """Print a line of a replica's log after the replica's name."""
        self._print([f"{replica}: {text}"])

    def show(self, job: JobView) -> None:
        """Print the changes since the last call."""
        self._print(f"trainjob: {text}" for text in describe_changes(self._job, job))
        self._job = job

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

    def note(self, text: str) -> None:
        """Print a line above the display."""
        with suppress(OSError):
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def line(self, replica: str, text: str) -> None:
        """Keep the line for the next redraw."""
        self._lines.append((replica, text))

    def show(self, job: JobView) -> None:
        """Draw the job."""
        with suppress(OSError):  # the terminal is closed: a signal ends the run
            self._live.start()  # more calls do nothing
            self._live.update(draw(job, self._lines), refresh=True)

    def close(self) -> None:
        """Leave the last display in place and restore the cursor."""
        with suppress(OSError):
            self._live.stop()


# The lines of replicas' logs, and notes about the job.


_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")


def wants_colours(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the stream is a terminal that shows colours, and NO_COLOR is not set."""
    return stream.isatty() and environ.get("TERM") != "dumb" and not environ.get("NO_COLOR")


class LogPrinter:
    """Prints the lines of replicas after their names, each name in its own colour.

    Args:
        stamps: print the time of each line, too.
    """

    def __init__(self, *, stamps: bool = False) -> None:
        self._stamps = stamps
        self._colours = wants_colours(sys.stdout)
        self._names = dict[str, str]()

    def line(self, replica: str, line: LogLine) -> None:
        """Print one line."""
        stamp = f"{line.stamp} " if self._stamps and line.stamp else ""
        self.text(replica, stamp + line.text)

    def text(self, replica: str, text: str) -> None:
        """Print one line as it is."""
        click.echo(f"{self._name(replica)}: {text}", color=self._colours)

    def note(self, text: str) -> None:
        """Print a message about the job on stderr, apart from its logs."""
        click.echo(f"trainjob: {text}", err=True)

    def _name(self, replica: str) -> str:
        if not self._colours:
            return replica
        if replica not in self._names:
            colour = _COLOURS[len(self._names) % len(_COLOURS)]
            self._names[replica] = click.style(replica, fg=colour)
        return self._names[replica]


# The progress line on stderr.


_ERASE = "\r\x1b[K"


class ProgressLine:
    """Keeps one line up to date on a terminal; elsewhere prints a line for each new state."""

    def __init__(self) -> None:
        # NO_COLOR turns off colours, not the redrawn line.
        self._redraws = wants_colours(sys.stderr, {"TERM": os.environ.get("TERM", "")})
        self._shown = ""
        self._is_drawn = False

    def show(self, job: JobView | None, problem: str = "") -> None:
        """Show the job, or a problem with the connection."""
        if self._redraws:
            text = problem or (describe_progress(job) if job else "")
            width = shutil.get_terminal_size().columns - 1
            click.echo(f"{_ERASE}{text[:width]}", err=True, nl=False, color=True)
            self._is_drawn = True
            return
        text = f"trainjob: {problem}" if problem else f"{job.name}: {describe_state(job)}" if job else ""
        if text and text != self._shown:
            click.echo(text, err=True)
        self._shown = text

    def problem(self, text: str) -> None:
        """Show a problem with the connection."""
        self.show(None, text)

    def clear(self) -> None:
        """Erase the line before other output."""
        if self._is_drawn:
            click.echo(_ERASE, err=True, nl=False, color=True)
        self._is_drawn = False
