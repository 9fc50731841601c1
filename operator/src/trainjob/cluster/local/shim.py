"""Starts one replica and ends all its descendants: a program that uses only the standard library.

    python -I -S shim.py CONTROL STATUS GRACE [HELD...] -- PROGRAM [ARGUMENT...]

CONTROL is a descriptor to read requests from, one per line: `TERM SECONDS` (end it, kill it after SECONDS)
or `KILL`. Its end means that the parent process is gone, so everything is killed. STATUS is a descriptor to
write to: a line of JSON when the program has started, and one when it has ended. HELD are descriptors to keep
open until the end. The program inherits none of them. The exit code is the program's, 128+n after a death by
signal n.

A program's descendants may leave its process group and session, and outlive it. On Linux they then become
children of this process (PR_SET_CHILD_SUBREAPER), which kills them and waits for them, as the kernel does for
a container.
"""

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # and so by its child processes, unless restored

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126

# A descendant that can't be killed (another user's, or stuck in the kernel) must not block this process.
_PATIENCE_SECONDS = 5.0
_POLL_SECONDS = 0.05


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


class Shim:
    """One program and all its descendants.

    Args:
        control: descriptor to read requests from.
        status: descriptor to write reports to.
        grace: seconds between SIGTERM and SIGKILL when a signal asks this process to end.
        command: the program and its arguments.
    """

    def __init__(self, control: int, status: int, grace: float, command: list[str]) -> None:
        self._control = control
        self._status = status
        self._grace = grace
        self._command = command
        self._orders = b""
        self._deadline: float | None = None
        self._child = 0
        self._wait_status: int | None = None
        self._wake, self._waker = os.pipe()

    def run(self) -> int:
        """Start the program, wait until it and its descendants have ended, and return its exit code."""
        for fd in (self._wake, self._waker):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *_REQUESTS):
            signal.signal(number, lambda *_: None)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._child = self._start()
        self._report(pid=self._child)
        while self._wait_status is None:
            self._wait_for_something()
            self._reap()
        code, killed_by = _exit_code(self._wait_status)
        self._report(exitCode=code, signal=killed_by)
        self._end_descendants()
        return code

    def _start(self) -> int:
        # Blocked until the child has the default handlers, so that no request to end is lost.
        shim = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _REQUESTS)
        child = os.fork()
        if child:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _REQUESTS)
            return child
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != shim:
                os._exit(128 + signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            for number in (*_REQUESTS, *_IGNORED_BY_PYTHON):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _REQUESTS)
            os.execvp(self._command[0], self._command)  # noqa: S606
        except OSError as error:
            _explain(self._command[0], error)
            os._exit(_NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else _NOT_EXECUTABLE)
        finally:
            os._exit(_NOT_EXECUTABLE)

    def _wait_for_something(self) -> None:
        timeout = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        sources = [self._wake] + ([self._control] if self._control >= 0 else [])
        ready, _, _ = select.select(sources, [], [], timeout)
        if self._wake in ready:
            signals = os.read(self._wake, 512)
            if any(number in signals for number in _REQUESTS):
                self._terminate(self._grace)
        if self._control in ready:
            self._obey()
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._kill_all()
            self._deadline = time.monotonic() + _POLL_SECONDS

    def _obey(self) -> None:
        data = os.read(self._control, 4096)
        if not data:
            self._control = -1
            self._deadline = time.monotonic()
            return
        *lines, self._orders = (self._orders + data).split(b"\n")
        for line in lines:
            order, _, seconds = line.decode().partition(" ")
            if order == "TERM":
                self._terminate(float(seconds))
            elif order == "KILL":
                self._deadline = time.monotonic()

    def _terminate(self, grace: float) -> None:
        # Only the program gets SIGTERM, like the first process of a container; it ends its children itself.
        if self._deadline is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self._child, signal.SIGTERM)
        latest = time.monotonic() + grace
        self._deadline = latest if self._deadline is None else min(self._deadline, latest)

    def _reap(self) -> bool:
        """Reap ended children, and return whether any are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._child:
                self._wait_status = status

    def _end_descendants(self) -> None:
        until = time.monotonic() + _PATIENCE_SECONDS
        if sys.platform != "linux":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child, signal.SIGKILL)
        while self._reap():
            if time.monotonic() > until:
                os.write(2, f"trainjob: could not end {sorted(_descendants())}: see to it\n".encode())
                return
            self._kill_all()
            select.select([self._wake], [], [], _POLL_SECONDS)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 512)

    def _kill_all(self) -> None:
        pids = _descendants()
        if self._wait_status is None:
            pids.add(self._child)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _report(self, **report: int | None) -> None:
        with contextlib.suppress(OSError):
            os.write(self._status, json.dumps({**report, "time": time.time()}).encode() + b"\n")


def _descendants() -> set[int]:
    """Return all descendants of this process, from /proc; none where there is no /proc."""
    children: dict[int, list[int]] = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib would cost a third of the start-up time
            if name.isdigit():
                parent = _parent_of(name)
                if parent is not None:
                    children.setdefault(parent, []).append(int(name))
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        below = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(below)
        waiting += below
    return found


def _parent_of(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
            # The second field is the program's name in parentheses, which may contain anything.
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _exit_code(wait_status: int) -> tuple[int, int | None]:
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        return 128 + number, number
    return os.WEXITSTATUS(wait_status), None


def _explain(program: str, error: OSError) -> None:
    where = "" if "/" in program else " on PATH"
    text = f"no such program{where}" if error.errno == errno.ENOENT else str(error.strerror)
    os.write(2, f"trainjob: can't start {program!r}: {text}\n".encode(errors="replace"))


def main(arguments: list[str]) -> int:
    """Run with the arguments that the module's docstring describes."""
    split = arguments.index("--")
    control, status, grace, *held = arguments[:split]
    for fd in (control, status, *held):
        os.set_inheritable(int(fd), False)
    return Shim(int(control), int(status), float(grace), arguments[split + 1 :]).run()


if __name__ == "__main__":
    # Not sys.exit: nothing may run between the last report and the exit.
    os._exit(main(sys.argv[1:]))
