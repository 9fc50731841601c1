"""Processes forked from one that has imported what they need: an import takes longer than most of them.

The original has one thread and has used nothing of what it imported, so that a copy is what an interpreter is
after the same imports.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

_CALL = "from support.forked import _serve; _serve()"


class Forked:
    """One process, with the part of `subprocess.Popen` that tests use.

    On the descriptor `news` its exit status comes as a line, for those who read it themselves.
    """

    def __init__(self, news: int) -> None:
        self.news = os.fdopen(news, "rb", buffering=0)
        self.pid = int(self.news.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self.news], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = int(self.news.readline())
            self.news.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # its end is on its way to us
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork(
    imports: Sequence[str],
    call: str,
    arguments: Sequence[Any],
    env: Mapping[str, str],
    output: int,
    argv: Sequence[str] = (),
) -> Forked:
    """Call `module:function` with what JSON can say, in a process that has imported these modules.

    `env` is its whole environment, though what is read on import is older; all that it prints goes to the
    descriptor `output`. It leads a session, and starts in the current folder.
    """
    request = {"call": call, "arguments": list(arguments), "argv": list(argv)}
    request |= {"env": dict(env), "cwd": str(Path.cwd())}
    news, theirs = os.pipe()
    with os.fdopen(theirs, "wb"):
        socket.send_fds(_original(tuple(imports)), [json.dumps(request).encode()], [output, theirs])
    return Forked(news)


@functools.cache
def _original(imports: tuple[str, ...]) -> socket.socket:
    """The line to the process that has imported this; it ends when nobody holds the line."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _CALL, str(theirs.fileno()), *imports],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve() -> None:
    """Fork for each request, and once more: the one between waits for the process, and tells of it."""
    line = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    gc.freeze()  # a collection in a copy needn't look at what has been imported
    while True:
        data, ends, _, _ = socket.recv_fds(line, 1 << 20, 2)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not data:
            return
        if os.fork() == 0:
            line.close()
            _mind(json.loads(data), *ends)
        for end in ends:
            os.close(end)


def _mind(request: Mapping[str, Any], output: int, news: int) -> None:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, max(output, news) + 1)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        module, _, function = request["call"].partition(":")
        call: Callable[..., object] = getattr(importlib.import_module(module), function)
        sys.argv = request["argv"] or ["forked"]
        call(*request["arguments"])
        sys.exit(0)
    os.close(output)
    os.write(news, f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    try:
        os.write(news, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    finally:
        os._exit(0)  # whether or not anybody wants to know any more
