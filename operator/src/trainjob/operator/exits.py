"""The exit codes of `trainjob controller`, beside click's 2 for wrong options."""

from __future__ import annotations

import logging
import os
import threading
from enum import IntEnum

_log = logging.getLogger(__name__)


class ExitCode(IntEnum):
    """Why the process has ended."""

    STOPPED = 0
    """It was asked to."""

    FAILED = 1
    """A part of it has failed; the log says which."""

    LEASE_LOST = 3
    """Another replica leads, or may lead."""


def leave_within(seconds: float, code: ExitCode) -> threading.Timer:
    """End the process by then, whatever hangs; a thread sees to it, since the event loop may be what does."""

    def leave() -> None:
        _log.critical("Still not stopped after %g s: leaving with exit code %d", seconds, code)
        logging.shutdown()
        os._exit(code)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
    return timer
