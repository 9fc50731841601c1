"""Log lines and notes on the terminal, or wherever they go."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TextIO

import click

from trainjob.cli.cluster.cursor import LogLine

_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green", "bright_magenta")


def wants_colours(stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether the stream is a terminal that shows colours, and nobody has asked for none (NO_COLOR)."""
    return stream.isatty() and environ.get("TERM") != "dumb" and not environ.get("NO_COLOR")


class LogPrinter:
    """Prints the lines of replicas behind their names, each replica in a colour of its own.

    Args:
        stamps: print the time of each line, too.
        colours: None: if stdout shows them.
    """

    def __init__(self, *, stamps: bool = False, colours: bool | None = None) -> None:
        self._stamps = stamps
        self._colours = wants_colours(sys.stdout) if colours is None else colours
        self._names = dict[str, str]()

    def line(self, replica: str, line: LogLine) -> None:
        """Print one line."""
        stamp = f"{line.stamp} " if self._stamps and line.stamp else ""
        self.text(replica, stamp + line.text)

    def text(self, replica: str, text: str) -> None:
        """Print one line as it is."""
        click.echo(f"{self._name(replica)}: {text}", color=self._colours)

    def note(self, text: str) -> None:
        """Say something about the job, apart from its logs."""
        click.echo(f"trainjob: {text}", err=True)

    def _name(self, replica: str) -> str:
        if not self._colours:
            return replica
        if replica not in self._names:
            colour = _COLOURS[len(self._names) % len(_COLOURS)]
            self._names[replica] = click.style(replica, fg=colour)
        return self._names[replica]
