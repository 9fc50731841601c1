"""Where a run shows itself: plain lines, or a live display on a terminal."""

import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol, TextIO

from trainjob.cli.changes import describe_changes
from trainjob.cli.view import JobView

_SHOWN_LOG_LINES = 8


class Screen(Protocol):
    """What a run tells as it goes; nothing here raises."""

    def note(self, text: str) -> None:
        """Show one line about the run itself."""

    def line(self, replica: str, text: str) -> None:
        """Show one line of a replica's log."""

    def show(self, view: JobView) -> None:
        """Show the job as it is now."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class PlainScreen:
    """Prints what happens, line by line, as other programs and log files want it.

    Args:
        stream: where to.
        on_gone: called once when nobody reads any more, as after `| head`.
    """

    def __init__(self, stream: TextIO | None = None, on_gone: Callable[[], None] = lambda: None) -> None:
        self._stream = stream or sys.stdout
        self._on_gone = on_gone
        self._gone = False
        self._view: JobView | None = None

    def note(self, text: str) -> None:
        """Print a line of our own."""
        self._print([f"trainjob: {text}"])

    def line(self, replica: str, text: str) -> None:
        """Print a replica's line behind its name."""
        self._print([f"{replica}: {text}"])

    def show(self, view: JobView) -> None:
        """Print what has changed."""
        self._print(f"trainjob: {text}" for text in describe_changes(self._view, view))
        self._view = view

    def close(self) -> None:
        """There is nothing to restore."""

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
    """A picture that is redrawn in place; lines about the run itself scroll by above it."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - only a terminal needs it
        from rich.live import Live  # noqa: PLC0415

        self._lines: deque[tuple[str, str]] = deque(maxlen=_SHOWN_LOG_LINES)
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()

    def note(self, text: str) -> None:
        """Print a line above the picture."""
        with suppress(OSError):
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def line(self, replica: str, text: str) -> None:
        """Keep the line for the next picture."""
        self._lines.append((replica, text))

    def show(self, view: JobView) -> None:
        """Draw the job."""
        from trainjob.cli.live_view import draw  # noqa: PLC0415

        with suppress(OSError):  # the terminal has been closed: a signal tells, not we
            self._live.update(draw(view, self._lines), refresh=True)

    def close(self) -> None:
        """Leave the last picture where it is and give the cursor back."""
        with suppress(OSError):
            self._live.stop()
