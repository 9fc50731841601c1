"""Starts programs, and finds and kills all their descendants; of the agent, and of `trainjob run`.

A program's descendants may leave its process group and session, and outlive it. They then become children of
this process (it is the first of its container, or a PR_SET_CHILD_SUBREAPER elsewhere), which kills them and
waits for them. That needs Linux; on other systems only the programs' process groups are known.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

NOT_FOUND = 127
NOT_EXECUTABLE = 126

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # its children inherit that unless it is restored

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _libc() -> Any:
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        return library if sys.platform == "linux" and library.prctl else None
    return None


_LIBC = _libc()  # before any fork: loading a library takes locks


def adopt_orphans() -> None:
    """Make this process the new parent of descendants that lose theirs."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def exit_code(wait_status: int) -> tuple[int, int | None]:
    """Return the exit code of a wait status (128+n for signal n), and the signal or None."""
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        return 128 + number, number
    return os.WEXITSTATUS(wait_status), None


def descendants(root: int, *, without: Iterable[int] = ()) -> set[int]:
    """Return the descendants of `root`, zombies included, except `without` and their descendants.

    Raises OSError if there is no /proc, or no free descriptor to read it.
    """
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - a hundred Path objects each time are slow
        stat = read_stat(int(name)) if name.isdigit() else None
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
    """Send SIGKILL to all descendants of `root`; return those that existed and could be signalled.

    `without` and their descendants are spared. Outside Linux, the process groups `groups` are killed instead.
    Raises OSError if there is no free descriptor to read /proc.
    """
    if sys.platform != "linux":
        return {group for group in groups if _signalled(os.killpg, group, signal.SIGKILL)}
    pids = descendants(root, without=without)
    return {pid for pid in pids if _signalled(os.kill, pid, signal.SIGKILL)}


def send(pid: int, number: int) -> bool:
    """Send a signal; return whether the process exists and may be signalled."""
    return _signalled(os.kill, pid, number)


def _signalled(send: Callable[[int, int], None], target: int, number: int) -> bool:
    try:
        send(target, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def read_stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on: state, parent and so on."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            # The second field is the program's name in parentheses, with any characters.
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except (OSError, ValueError):
        return None


def spawn(command: Sequence[str], env: Mapping[str, str], *, stdin: int, output: int) -> int:
    """Start a program from the PATH of `env`, its whole environment, and return its process id.

    It has a session of its own, and no descriptor of this process except these two. `subprocess` is not used:
    it waits for its children itself, which conflicts with a process that waits for all.

    If it can't be executed, it ends with 126 or 127 after a line on its output. It reads from the descriptor
    `stdin` and writes stdout and stderr to `output`. Raises OSError if the system has no free process.
    """
    starter = os.getpid()
    # The loop's handlers write into a socket that the child shares until it executes the program.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(command, env, stdin, output, starter)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def can_listen(port: int) -> bool:
    """Return whether a server could listen on the port; old connections in TIME_WAIT don't count."""
    family = socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET
    try:
        probe = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        family = socket.AF_INET
        probe = socket.socket(family, socket.SOCK_STREAM)
    with probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(("", port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def _become(command: Sequence[str], env: Mapping[str, str], stdin: int, output: int, starter: int) -> None:
    """Turn the forked process into the program; never returns."""
    try:
        os.setsid()
        end_with_parent()
        if os.getppid() != starter:
            os._exit(128 + signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        _keep_only(stdin, output)
        execute(command, env)
    finally:
        os._exit(NOT_EXECUTABLE)


def execute(command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Turn this process into a program from the PATH of `env`, with the signal handlers that it expects.

    If it can't be executed, it ends with 126 or 127 after a line on its output.
    """
    try:
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)) or number in _IGNORED_BY_PYTHON:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(command[0], list(command), dict(env))  # noqa: S606 - the user's command
    except OSError as error:
        _explain(command[0], error)
        os._exit(NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE)


def _keep_only(stdin: int, output: int) -> None:
    for source, target in ((_high(stdin), 0), (_high(output), 1)):
        os.dup2(source, target)
    os.dup2(1, 2)
    try:
        for name in os.listdir("/dev/fd"):  # noqa: PTH208
            if int(name) > 2:
                with contextlib.suppress(OSError):
                    os.close(int(name))
    except OSError:
        os.closerange(3, 1024)


def _high(descriptor: int) -> int:
    """Return a copy of the descriptor above 2."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def _explain(program: str, error: OSError) -> None:
    where = "" if "/" in program else " on PATH"
    text = f"no such program{where}" if error.errno == errno.ENOENT else str(error.strerror)
    os.write(2, f"trainjob: can't start {program!r}: {text}\n".encode(errors="replace"))
