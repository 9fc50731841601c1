"""Ends the process when its leadership has ended without its event loop having noticed."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainjob.operator.exits import ExitCode

_log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5

SLACK_SECONDS = 1.0
"""For the event loop to notice first; the others' wait is longer than this and the deadline together."""


def leave() -> None:
    """End the process at once."""
    _log.critical("The lease has ended and the event loop hangs: leaving")
    logging.shutdown()
    os._exit(ExitCode.LEASE_LOST)


@contextmanager
def guarded(
    until: Callable[[], float | None], clock: Callable[[], float], leave: Callable[[], None] = leave
) -> Iterator[None]:
    """Have a thread look at the deadline while in the context.

    Args:
        until: returns the time at which the leadership ends unless it is renewed; None without it.
        clock: the time that goes with it.
        leave: called once, from the thread, when the deadline is over.
    """
    done = threading.Event()

    def look() -> None:
        while not done.wait(LOOK_SECONDS):
            deadline = until()
            if deadline is not None and clock() > deadline + SLACK_SECONDS:
                leave()
                return

    thread = threading.Thread(target=look, name="lease guard", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
