"""The processes of this container: waited for, looked at, and asked for their stacks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
from collections.abc import Callable

from trainjob_trainer.contract.processes import adopt_orphans, descendants, read_stat, send

STOPPED_STATES = ("T", "t")


class Reaper:
    """Waits for every child of this process, adopted ones included, as soon as it has ended.

    No other code in the process may wait for children: `subprocess` would lose its exit codes.
    """

    def __init__(self) -> None:
        self._awaited: dict[int, Callable[[int], None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def listen(self) -> None:
        """Reap each child at its end; needs the running loop of the main thread."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_signal_handler(signal.SIGCHLD, self.reap)
            adopt_orphans()
            self.reap()

    def expect(self, pid: int, ended: Callable[[int], None]) -> None:
        """Call `ended` with the wait status of this child once it is reaped."""
        self._awaited[pid] = ended

    def reap(self) -> None:
        """Wait for all children that have ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ended = self._awaited.pop(pid, None)
            if ended is not None:
                ended(status)

    def close(self) -> None:
        """Stop reaping at each child's end."""
        if self._loop is not None:
            self._loop.remove_signal_handler(signal.SIGCHLD)
            self._loop = None


def is_stopped(pid: int) -> bool:
    """Return whether the process is stopped (SIGSTOP, a debugger)."""
    stat = read_stat(pid)
    return stat is not None and stat[0] in STOPPED_STATES


def catches(pid: int, number: int) -> bool:
    """Return whether the process has a handler for the signal, which would end it otherwise."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            caught = next(line for line in file if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return False


# The stacks of all threads of a Python process, which it prints itself on a signal.
#
# `bootstrap/sitecustomize.py` registers faulthandler for it, and for crashes of native code. A process
# without that handler gets no signal: it would end. The handler runs in C, so a process prints its stacks
# even while it holds the interpreter's lock.


STACK_SIGNAL = int(getattr(signal, "SIGRTMIN", 0)) + 5
"""A real-time signal: SIGUSR1 and the like are the user's."""

_MOST = 16


_HEADER = re.compile(r"^(Current thread|Thread) 0x.*most recent call first\):$", re.MULTILINE)
_FATAL = re.compile(r"^Fatal Python error: .*$", re.MULTILINE)
_MOST_FRAMES = 16
_TITLE = "Main thread (most recent call last):"


def main_thread(log: str) -> str:
    """Return the innermost frames, from a log, of the thread that answered: the main one.

    The innermost frame is last, so that it stays if only the end is kept. The kernel delivers a process's
    signals to its main thread if it can; the other threads' stacks rarely explain a stall.
    """
    headers = list(_HEADER.finditer(log))
    answering = [header for header in headers if header[1] == "Current thread"] or headers
    if not answering:
        return ""
    lines = log[answering[-1].end() + 1 :].splitlines()
    frames = list(itertools.takewhile(lambda line: line.startswith("  "), lines))
    return "\n".join([_TITLE, *reversed(frames[:_MOST_FRAMES])])


def fatal_error(log: str) -> str:
    """Return a crash of native code from a log: its line, and the innermost frames of the main thread."""
    found = _FATAL.search(log)
    return "" if found is None else f"{found[0]}\n{main_thread(log[found.end() :])}".rstrip()


def answers_stack_requests(pid: int) -> bool:
    """Return whether the process has run the bootstrap, and so prints its stacks on request."""
    return hasattr(signal, "SIGRTMIN") and catches(pid, STACK_SIGNAL)


def request_stacks(main: int) -> list[int]:
    """Ask a process and its descendants for their stacks; return those that were asked.

    `main` is the training process, which may be a shell around it.
    """
    below: list[int] = []
    with contextlib.suppress(OSError):
        below = sorted(descendants(main))
    asked = [pid for pid in [main, *below] if answers_stack_requests(pid)][:_MOST]
    return [pid for pid in asked if send(pid, STACK_SIGNAL)]
