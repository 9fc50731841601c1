"""Starts one replica and ends all its descendants: a program that needs no installed package.

    python -I -S shim.py LIBRARY CONTROL STATUS GRACE NAMESPACES GROUP [HELD...] -- PROGRAM [ARGUMENT...]

LIBRARY is the folder with the trainer's package. CONTROL is a descriptor to read requests from, one per line:
`TERM SECONDS` (end it, kill it after SECONDS, at once for 0). Its end means that the parent process is gone,
so everything is killed. STATUS is a descriptor to write to: a line of JSON when the program has started, and
one when it has ended. NAMESPACES are descriptors of Linux namespaces to enter, with commas, or `-`. GROUP is
the folder of a control group to enter, or `-`. HELD are descriptors to keep open until the end. The program
inherits none of the descriptors. The exit code is the program's, 128+n after a death by signal n.

Descendants that have lost their parent become children of this process, which kills them, as the kernel does
at the end of a container. An agent does so too, between two starts of training, but it can't stand in for
this process: a replica without `InPlace` has no agent, and an agent can be killed, which leaves its orphans.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import time

sys.path.append(sys.argv[1])  # behind the standard library, which nothing there may replace

from trainjob_trainer.contract.processes import adopt_orphans, descendants, exit_code, kill_tree, send, spawn

_REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

# A descendant that can't be killed (another user's, or stuck in the kernel) must not block this process.
_PATIENCE_SECONDS = 5.0
_POLL_SECONDS = 0.05


class Shim:
    """One program and all its descendants.

    Args:
        control: descriptor to read requests from.
        status: descriptor to write reports to.
        grace: seconds between SIGTERM and SIGKILL when a signal asks this process to end.
    """

    def __init__(self, control: int, status: int, grace: float) -> None:
        self._control = control
        self._status = status
        self._grace = grace
        self._rest = b""
        self._deadline: float | None = None
        self._child = 0
        self._wait_status: int | None = None
        self._wake, self._waker = os.pipe()

    def run(self, command: list[str]) -> int:
        """Start the program, wait until it and its descendants have ended, and return its exit code."""
        for fd in (self._wake, self._waker):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *_REQUESTS):
            signal.signal(number, lambda *_: None)
        adopt_orphans()
        self._child = spawn(command, os.environ, stdin=0, output=1)
        self._report(pid=self._child)
        while self._wait_status is None:
            self._wait()
            self._reap()
        code, killed_by = exit_code(self._wait_status)
        self._report(exitCode=code, signal=killed_by)
        until = time.monotonic() + _PATIENCE_SECONDS
        self._kill_all()
        while self._reap():
            if time.monotonic() > until:
                left = sorted(descendants(os.getpid()))
                os.write(2, f"trainjob: could not end {left}: end it yourself\n".encode())
                break
            select.select([self._wake], [], [], _POLL_SECONDS)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 512)
            self._kill_all()
        return code

    def _wait(self) -> None:
        timeout = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        sources = [self._wake] + ([self._control] if self._control >= 0 else [])
        ready, _, _ = select.select(sources, [], [], timeout)
        if self._wake in ready and set(os.read(self._wake, 512)).intersection(_REQUESTS):
            self._terminate(self._grace)
        if self._control in ready:
            data = os.read(self._control, 4096)
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._terminate(float(line.removeprefix(b"TERM ")))
            if not data:
                self._control = -1
                self._terminate(0)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._kill_all()
            self._deadline = time.monotonic() + _POLL_SECONDS

    def _terminate(self, grace: float) -> None:
        # Only the program gets SIGTERM, like the first process of a container; it ends its children itself.
        if self._deadline is None and grace > 0:
            send(self._child, signal.SIGTERM)
        latest = time.monotonic() + grace
        self._deadline = latest if self._deadline is None else min(self._deadline, latest)

    def _reap(self) -> bool:
        """Wait for all children that have ended, and return whether others are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._child:
                self._wait_status = status

    def _kill_all(self) -> None:
        with contextlib.suppress(OSError):  # no descriptor to read /proc: the next try may have one
            kill_tree(os.getpid(), groups=(self._child,))

    def _report(self, **report: int | None) -> None:
        with contextlib.suppress(OSError):
            os.write(self._status, json.dumps({**report, "time": time.time()}).encode() + b"\n")


if __name__ == "__main__":
    split = sys.argv.index("--")
    control, status, grace, namespaces, group, *held = sys.argv[2:split]
    entered = namespaces.split(",") if namespaces != "-" else []
    for fd in (control, status, *entered, *held):
        os.set_inheritable(int(fd), False)
    if group != "-":
        try:
            with open(f"{group}/cgroup.procs", "w", encoding="ascii") as processes:  # noqa: PTH123
                processes.write("0")
        except OSError as error:
            sys.exit(f"trainjob: can't enter the control group {group}: {error.strerror}")
    for fd in entered:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(int(fd), 0) != 0:
            sys.exit(f"trainjob: can't enter the run's network: {os.strerror(ctypes.get_errno())}")
    # Not sys.exit: nothing may run between the last report and the exit.
    os._exit(Shim(int(control), int(status), float(grace)).run(sys.argv[split + 1 :]))
