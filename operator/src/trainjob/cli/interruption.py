"""Ctrl-C and its relatives: the first asks to stop, the second insists."""

import asyncio
import signal
from collections.abc import Callable

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Hears the signals that ask a program to stop; use it within one event loop.

    Attributes:
        asked: set by the first of them.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._insisted: Callable[[], None] = lambda: None
        # `nohup` has a program ignore SIGHUP, so that it outlives its terminal.
        outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._heard = (signal.SIGINT, signal.SIGTERM) if outlives else _SIGNALS

    def on_second(self, call: Callable[[], None]) -> None:
        """Call this for every request after the first one."""
        self._insisted = call

    def ask(self) -> None:
        """Ask to stop, as a signal does."""
        if self.asked.is_set():
            self._insisted()
        self.asked.set()

    def __enter__(self) -> "Interruption":
        loop = asyncio.get_running_loop()
        for number in self._heard:
            loop.add_signal_handler(number, self.ask)
        return self

    def __exit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in self._heard:
            loop.remove_signal_handler(number)
