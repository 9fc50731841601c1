"""How a process starts: in a session of its own, with nothing of the agent's but its output pipe.

`subprocess` is not used: it waits for its children itself, which goes wrong beside a reaper of all.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import socket
from collections.abc import Mapping, Sequence

from trainjob_trainer.agent.process_tree import end_with_parent

NOT_FOUND = 127
NOT_EXECUTABLE = 126

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # and so by whatever it starts, unless restored


def spawn(command: Sequence[str], env: Mapping[str, str], *, stdin: int, output: int) -> int:
    """Start a program and return its process id.

    A program that can't be executed ends with 126 or 127 after a line on its output.

    Args:
        command: the program, looked up on the PATH of `env`, and its arguments.
        env: its whole environment.
        stdin: the descriptor that it reads from.
        output: the descriptor that it writes stdout and stderr to.

    Raises:
        OSError: the system has no process to give.
    """
    agent = os.getpid()
    # The loop's handlers write into a socket that the child shares until it executes the program.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if pid == 0:
            _become(command, env, stdin, output, agent)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def can_listen(port: int) -> bool:
    """Whether a server could listen on the port; connections that linger from before don't count."""
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


def _become(command: Sequence[str], env: Mapping[str, str], stdin: int, output: int, agent: int) -> None:
    """Turn the forked process into the program; never returns."""
    try:
        os.setsid()
        end_with_parent()
        if os.getppid() != agent:
            os._exit(128 + signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)) or number in _IGNORED_BY_PYTHON:
                signal.signal(number, signal.SIG_DFL)
        _keep_only(stdin, output)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.execvpe(command[0], list(command), dict(env))  # noqa: S606 - the user's command
    except OSError as error:
        _explain(command[0], error)
        os._exit(NOT_FOUND if error.errno in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE)
    finally:
        os._exit(NOT_EXECUTABLE)


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
    """A copy that none of the first three replaces."""
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def _explain(program: str, error: OSError) -> None:
    where = "" if "/" in program else " on PATH"
    text = f"no such program{where}" if error.errno == errno.ENOENT else str(error.strerror)
    os.write(2, f"trainjob: can't start {program!r}: {text}\n".encode(errors="replace"))
