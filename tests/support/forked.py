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
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_CALL = "from support.forked import _serve; _serve()"


class Forked(NamedTuple):
    """A process, and the descriptor on which its exit status comes as a line once it has ended."""

    pid: int
    news: int


def fork(
    imports: Sequence[str], call: str, arguments: Sequence[Any], env: Mapping[str, str], output: int
) -> Forked:
    """Call `module:function` with what JSON can say, in a process that has imported these modules.

    `env` is its whole environment, though what is read on import is older; all that it prints goes to the
    descriptor `output`. It leads a session, and starts in the current folder.
    """
    request = {"call": call, "arguments": list(arguments), "env": dict(env), "cwd": str(Path.cwd())}
    news, theirs = os.pipe()
    with os.fdopen(theirs, "wb"):
        socket.send_fds(_original(tuple(imports)), [json.dumps(request).encode()], [output, theirs])
    pid = b""
    while not pid.endswith(b"\n"):
        read = os.read(news, 1)
        assert read, "no process was forked"
        pid += read
    return Forked(int(pid), news)


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
        sys.argv = ["forked"]
        call(*request["arguments"])
        sys.exit(0)
    os.close(output)
    os.write(news, f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    try:
        os.write(news, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    finally:
        os._exit(0)  # whether or not anybody wants to know any more
