"""Output on a terminal: the display of a run, log lines in colours, and the progress line."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, TextIO

import click
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from trainjob.client.drawing import draw_page
from trainjob.client.log_lines import EqualLines, Line, StopNoise, is_harmless, is_shown
from trainjob.client.page import JobHistory, build_page
from trainjob.client.presenter import describe_changes, describe_progress, describe_state, time_of_day
from trainjob.client.view import JobView
from trainjob.core.wording import printable
from trainjob_trainer.contract.reports import shorten

if TYPE_CHECKING:
    from trainjob.client.job_logs import LogLine


class Detail(Enum):
    """How much of a run is shown.

    Attributes:
        QUIET: failures, warnings and the end.
        USUAL: also changes and the lines of logs, without those that are known to be harmless.
        VERBOSE: every line of the logs.
    """

    QUIET = "quiet"
    USUAL = "usual"
    VERBOSE = "verbose"


class PlainScreen:
    """Prints changes line by line, each with its time, for log files and other programs.

    Args:
        on_gone: called once when the reader is gone, as after `| head`.
        detail: what is printed.
        clock: returns the current time.
    """

    def __init__(
        self,
        on_gone: Callable[[], None],
        detail: Detail = Detail.USUAL,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._stream = sys.stdout
        self._on_gone = on_gone
        self._detail = detail
        self._clock = clock
        self._gone = False
        self._job: JobView | None = None
        self._lines, self._noise = EqualLines(), StopNoise()

    def note(self, text: str) -> None:
        """Print a line about the run itself."""
        if self._detail is not Detail.QUIET or self._job is not None:  # not about preparations
            self._print_lines()
            self._print([f"trainjob: {printable(text)}"])

    def line(self, replica: str, text: str) -> None:
        """Print a line of a replica's log after the replica's name, once for all that print it now."""
        if self._detail is Detail.VERBOSE:
            self._print([f"{replica}: {text}"])
        elif self._detail is Detail.USUAL and is_shown(text) and not self._noise.has(replica, text):
            self._lines.add(replica, text, self._clock().timestamp())

    def show(self, job: JobView) -> None:
        """Print the changes since the last call."""
        known = len(self._job.events) if self._job is not None else 0
        warnings = [each.message for each in job.events[known:] if each.type == "Warning"]
        changes = warnings if self._detail is Detail.QUIET else describe_changes(self._job, job)
        # Lines of logs come before what followed from them.
        self._print_lines(None if changes else self._clock().timestamp())
        self._print(f"trainjob: {text}" for text in changes)
        self._job = job

    def close(self) -> None:
        """Print the lines that are left."""
        self._print_lines()

    def _print_lines(self, now: float | None = None) -> None:
        stamp = cache(lambda second: time_of_day(datetime.fromtimestamp(second, UTC)))
        self._write(f"{stamp(int(line.at))} {line.source}: {line.text}\n" for line in self._lines.take(now))

    def _print(self, lines: Iterable[str]) -> None:
        stamp = time_of_day(self._clock())
        self._write(f"{stamp} {line}\n" for line in lines)

    def _write(self, lines: Iterable[str]) -> None:
        if self._gone:
            return
        try:
            self._stream.writelines(lines)
            self._stream.flush()
        except (OSError, ValueError):
            self._gone = True
            self._on_gone()


_SHOWN_LOG_LINES = 8


def draw(job: JobView, history: JobHistory, lines: Iterable[Line] = (), width: int = 80) -> RenderableType:
    """Return the page of a run for so many columns, with the last lines of logs."""
    below = []
    for line in lines:
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"{line.source} | ", style="dim")
        below.append(text.append(shorten(line.text, max(width - len(text), 1))))
    return draw_page(build_page(job, history, grouped=True), below, width)


class LiveScreen:
    """A live display that is redrawn in place; lines about the run itself scroll above it.

    Args:
        detail: which lines of logs are shown.
    """

    def __init__(self, detail: Detail = Detail.USUAL) -> None:
        self._shows_all = detail is Detail.VERBOSE
        self._lines, self._noise = EqualLines(_SHOWN_LOG_LINES), StopNoise()
        self._history = JobHistory()
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False)

    def note(self, text: str) -> None:
        """Print a line above the display."""
        with suppress(OSError):
            self._console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def line(self, replica: str, text: str) -> None:
        """Keep the line for the next redraw."""
        if self._shows_all or (is_shown(text) and not self._noise.has(replica, text)):
            self._lines.add(replica, text, time.monotonic())

    def show(self, job: JobView) -> None:
        """Draw the job."""
        self._history.observe(job)
        with suppress(OSError):  # the terminal is closed: a signal ends the run
            self._live.start()  # more calls do nothing
            drawn = draw(job, self._history, self._lines, self._console.width)
            self._live.update(drawn, refresh=True)

    def close(self) -> None:
        """Leave the last display in place and restore the cursor."""
        with suppress(OSError):
            self._live.stop()


_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")


def wants_colours(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the stream is a terminal that shows colours, and NO_COLOR is not set."""
    return stream.isatty() and environ.get("TERM") != "dumb" and not environ.get("NO_COLOR")


class LogPrinter:
    """Prints the lines of replicas after their names, each name in its own colour, without harmless ones.

    Args:
        stamps: print the time of each line, too.
    """

    def __init__(self, *, stamps: bool = False) -> None:
        self._stamps = stamps
        self._colours = wants_colours(sys.stdout)
        self._numbers, self._noise = dict[str, int](), StopNoise()

    def line(self, replica: str, line: LogLine) -> None:
        """Print one line."""
        self.text(replica, line.text, f"{line.stamp} " if self._stamps and line.stamp else "")

    def text(self, replica: str, text: str, stamp: str = "") -> None:
        """Print one line as it is."""
        if is_harmless(text) or self._noise.has(replica, text):
            return
        number = self._numbers.setdefault(replica, len(self._numbers))
        name = click.style(replica, fg=_COLOURS[number % len(_COLOURS)])
        click.echo(f"{name}: {stamp}{text}", color=self._colours)

    def note(self, text: str) -> None:
        """Print a message about the job on stderr, apart from its logs."""
        click.echo(f"trainjob: {printable(text)}", err=True)


_ERASE = "\r\x1b[K"


class ProgressLine:
    """Keeps one line up to date on a terminal; elsewhere prints a line for each new state.

    Attributes:
        redraws: whether it is a terminal.
    """

    def __init__(self) -> None:
        # NO_COLOR turns off colours, not the redrawn line.
        self.redraws = wants_colours(sys.stderr, {"TERM": os.environ.get("TERM", "")})
        self._shown = ""
        self._is_drawn = False

    def show(self, job: JobView) -> None:
        """Show the job."""
        self._show(describe_progress(job) if self.redraws else f"{job.name}: {describe_state(job)}")

    def problem(self, text: str) -> None:
        """Show a problem with the connection."""
        self._show(text if self.redraws else f"trainjob: {text}")

    def _show(self, text: str) -> None:
        text = printable(text)
        if self.redraws:
            width = shutil.get_terminal_size().columns - 1
            click.echo(f"{_ERASE}{shorten(text, width)}", err=True, nl=False, color=True)
            self._is_drawn = True
        elif text != self._shown:
            click.echo(text, err=True)
        self._shown = text

    def clear(self) -> None:
        """Erase the line before other output."""
        if self._is_drawn:
            click.echo(_ERASE, err=True, nl=False, color=True)
        self._is_drawn = False
