"""One line on stderr that says how far a job is."""

from __future__ import annotations

import os
import shutil
import sys

import click

from trainjob.cli.cluster.printing import wants_colours
from trainjob.cli.cluster.reading import Job
from trainjob.cli.figures import format_rate
from trainjob.core.wording import printable

_ERASE = "\r\x1b[K"


def describe_progress(job: Job) -> str:
    """Return `digits: Running: training on 2 workers, step 120/440, 1,250 examples/s, 40s left`."""
    status = job.status
    state = f"{job.name}: {job.state}" + (f": {status.message}" if status.message else "")
    return printable(", ".join([state, *_figures(job)]))


def describe_state(job: Job) -> str:
    """Return the same without figures, which change all the time."""
    message = job.status.message
    return printable(f"{job.name}: {job.state}" + (f": {message}" if message else ""))


def _figures(job: Job) -> list[str]:
    progress = job.status.progress
    if progress is None or job.is_over:
        return []
    figures = []
    if progress.step is not None:
        of = f"/{progress.total_steps}" if progress.total_steps else ""
        figures.append(f"step {progress.step}{of}")
    if progress.examples_per_second is not None:
        figures.append(f"{format_rate(progress.examples_per_second)} examples/s")
    if progress.eta:
        figures.append(f"{progress.eta} left")
    return figures


def _can_redraw() -> bool:
    # Whoever wants no colours (NO_COLOR) may still want one line instead of many.
    return wants_colours(sys.stderr, {"TERM": os.environ.get("TERM", "")})


class ProgressLine:
    """Keeps one line up to date on a terminal; elsewhere each new state is a line of its own.

    Args:
        redraws: None: if stderr is a terminal.
    """

    def __init__(self, *, redraws: bool | None = None) -> None:
        self._redraws = _can_redraw() if redraws is None else redraws
        self._told = ""
        self._is_drawn = False

    def show(self, job: Job | None, trouble: str = "") -> None:
        """Show the job, or trouble with the connection."""
        if self._redraws:
            text = trouble or (describe_progress(job) if job else "")
            width = shutil.get_terminal_size().columns - 1
            click.echo(f"{_ERASE}{text[:width]}", err=True, nl=False, color=True)
            self._is_drawn = True
            return
        text = f"trainjob: {trouble}" if trouble else describe_state(job) if job else ""
        if text and text != self._told:
            click.echo(text, err=True)
        self._told = text

    def clear(self) -> None:
        """Take the line away: what comes now stays."""
        if self._is_drawn:
            click.echo(_ERASE, err=True, nl=False, color=True)
        self._is_drawn = False
