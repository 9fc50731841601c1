"""The stacks of all threads of a Python process, printed by itself when it gets a certain signal.

`bootstrap/sitecustomize.py` registers faulthandler for it. A process without that handler is left alone: the
signal would end it. The handler runs in C, so that a process shows its stacks also while it holds the
interpreter's lock.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
from collections.abc import Iterable

from trainjob_trainer.agent.process_tree import catches, descendants, send

STACK_SIGNAL = int(getattr(signal, "SIGRTMIN", 0)) + 5
"""A real-time signal, as SIGUSR1 and the like are the user's."""

_MOST = 16


_HEADER = re.compile(r"^(Current thread|Thread) 0x.*most recent call first\):$", re.MULTILINE)
_MOST_FRAMES = 16
_TITLE = "Main thread (most recent call last):"


def main_thread(log: str) -> str:
    """Return the innermost frames, in a log, of the thread that answered: the main one.

    They come last, so that they stay when only the end of it is kept or shown. The kernel gives a process's
    signals to its main thread if it can; what is printed of the others hardly ever says why training stands
    still.
    """
    headers = list(_HEADER.finditer(log))
    answering = [header for header in headers if header[1] == "Current thread"] or headers
    if not answering:
        return ""
    lines = log[answering[-1].end() + 1 :].splitlines()
    frames = list(itertools.takewhile(lambda line: line.startswith("  "), lines))
    return "\n".join([_TITLE, *reversed(frames[:_MOST_FRAMES])])


def answers_stack_requests(pid: int) -> bool:
    """Whether the process has run the bootstrap, and so will print its stacks."""
    return hasattr(signal, "SIGRTMIN") and catches(pid, STACK_SIGNAL)


def request_stacks(main: int, *, without: Iterable[int] = ()) -> list[int]:
    """Ask a process, and those below it, for their stacks; return those that were asked.

    Args:
        main: the process id of the training process, which may be a shell around it.
        without: processes to leave alone.
    """
    below: list[int] = []
    with contextlib.suppress(OSError):
        below = sorted(descendants(main, without=without))
    asked = [pid for pid in [main, *below] if answers_stack_requests(pid)][:_MOST]
    return [pid for pid in asked if send(pid, STACK_SIGNAL)]
