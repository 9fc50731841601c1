"""The processes below this one: found, killed and waited for, however deep they are.

A program's descendants may leave its process group and session, and outlive it. They then become children of
this process (it is the first of its container, or a PR_SET_CHILD_SUBREAPER elsewhere), which kills them and
waits for them. That takes Linux; on other systems only the process groups of the programs are known.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import Any

STOPPED_STATES = ("T", "t")

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _libc() -> Any:
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        return library if sys.platform == "linux" and library.prctl else None
    return None


_LIBC = _libc()  # before any fork: loading a library takes locks


def adopt_orphans() -> None:
    """From now on descendants that lose their parent become children of this process."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


class Reaper:
    """Waits for every child of this process, adopted ones included, as soon as it has ended.

    Nothing else in the process may wait for children: `subprocess` would lose its exit codes to it.
    """

    def __init__(self) -> None:
        """Not listening yet."""
        self._awaited: dict[int, Callable[[int], None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def listen(self) -> None:
        """Reap whenever a child has ended; needs the running loop of the main thread."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_signal_handler(signal.SIGCHLD, self.reap)
            adopt_orphans()
            self.reap()

    def expect(self, pid: int, ended: Callable[[int], None]) -> None:
        """Call `ended` with the wait status of this child once it is reaped."""
        self._awaited[pid] = ended

    def reap(self) -> None:
        """Take leave of all children that have ended."""
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
        """Leave children alone from now on."""
        if self._loop is not None:
            self._loop.remove_signal_handler(signal.SIGCHLD)
            self._loop = None


def exit_code(wait_status: int) -> tuple[int, int | None]:
    """Return a wait status as an exit code (128+n for signal n) and the signal, if it was one."""
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        return 128 + number, number
    return os.WEXITSTATUS(wait_status), None


def descendants(root: int, *, without: Iterable[int] = ()) -> set[int]:
    """Return the processes below `root`, zombies included.

    Args:
        root: a process id.
        without: processes to leave out, with all below them.

    Raises:
        OSError: there is no /proc, or no descriptor to read it with.
    """
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - a hundred Path objects a look are dear
        stat = _stat(int(name)) if name.isdigit() else None
        if stat is not None:
            children.setdefault(int(stat[1]), []).append(int(name))
    left_out = set(without)
    seen = set(left_out)
    waiting = [root]
    while waiting:
        below = [pid for pid in children.get(waiting.pop(), ()) if pid not in seen]
        seen.update(below)
        waiting += below
    return seen - left_out


def kill_tree(root: int, *, without: Iterable[int] = (), groups: Iterable[int] = ()) -> set[int]:
    """Send SIGKILL to everything below `root`; return what was there and may be killed.

    Args:
        root: a process id.
        without: processes to leave alone, with all below them.
        groups: process groups to kill where there is no /proc.

    Raises:
        OSError: no descriptor is left to look with.
    """
    if sys.platform != "linux":
        return {group for group in groups if _signalled(os.killpg, group, signal.SIGKILL)}
    pids = descendants(root, without=without)
    return {pid for pid in pids if _signalled(os.kill, pid, signal.SIGKILL)}


def send(pid: int, number: int) -> bool:
    """Send a signal; tell whether there was a process to get it."""
    return _signalled(os.kill, pid, number)


def is_stopped(pid: int) -> bool:
    """Whether the process has been stopped (SIGSTOP, a debugger) and runs no more."""
    stat = _stat(pid)
    return stat is not None and stat[0] in STOPPED_STATES


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal, which would end it otherwise."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            caught = next(line for line in file if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
    except (OSError, StopIteration, ValueError, IndexError):
        return False


def _signalled(send: Callable[[int, int], None], target: int, number: int) -> bool:
    try:
        send(target, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _stat(pid: int) -> list[str] | None:
    """Return state, parent and so on."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            # The second field is the program's name in parentheses, which may hold anything.
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except (OSError, ValueError):
        return None
