"""Training processes that need not import TensorFlow: they are forked from one that has.

The import takes longer than what most tests train. The process that is forked has one thread and has used
nothing of TensorFlow, so that a copy of it is what an interpreter is after the same imports. There is one for
each PYTHONPATH: none, and the bootstrap folder; a copy of that one takes on its job's environment as a warm
standby does. Whatever else has to be there before the imports, such as a variable that
TensorFlow reads when it is loaded, wants an interpreter of its own.
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
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

QUIET = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
"""Of every process here: it has been read before the fork."""

READ_BEFORE = (
    "CUDA",
    "GRPC",
    "KERAS",
    "LD_",
    "MALLOC",
    "OMP",
    "PYTHON",
    "TF_CPP",
    "TF_ENABLE",
    "TRAIN_WITHOUT",
    "XLA",
)
"""Beginnings of the names of variables that a copy can't take on; PYTHONPATH chooses what is copied."""


class Forked:
    """One process, with the part of `subprocess.Popen` that tests use.

    `pid` is that of its process group too; `stdout` has errors as well, and is None if they go elsewhere.
    """

    def __init__(self, output: int | None, news: int) -> None:
        self.stdout = None if output is None else os.fdopen(output, encoding="utf-8", errors="replace")
        self.returncode: int | None = None
        self._news = os.fdopen(news, "rb", buffering=0)
        self._text = b""
        self._read(None)
        self.pid = int(self._text.split()[0])

    def poll(self) -> int | None:
        self._read(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self._read(left)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # its end is on its way to us
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait_until_stopped(self) -> None:
        while not self._text.endswith(b"stopped\n"):
            assert self.returncode is None
            self._read(None)

    def _read(self, seconds: float | None) -> None:
        if self.returncode is None and select.select([self._news], [], [], seconds)[0]:
            self._text += self._news.read(1000) or b""
            *_, last = self._text.splitlines()
            if last.startswith(b"ended "):
                self.returncode = int(last.split()[1])
                self._news.close()


def can_fork(interpreter: Sequence[str], env: Mapping[str, str]) -> bool:
    """Whether a copy does what this interpreter would with these variables."""
    too_late = [name for name in env if name.startswith(READ_BEFORE) and name != "PYTHONPATH"]
    return tuple(interpreter) == (sys.executable,) and not too_late


def fork(
    script: Path,
    arguments: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    *,
    output: int | None = None,
    path: str = "",
) -> Forked:
    """Start a Python script in a session of its own; `env` is its whole environment.

    `output` is a descriptor, or None for a pipe; `path` is the bootstrap folder for PYTHONPATH, or nothing.
    """
    request = {"arguments": [str(script), *arguments], "env": dict(env), "cwd": str(cwd)}
    news, pipe = os.pipe(), os.pipe() if output is None else None
    ends = [output if pipe is None else pipe[1], news[1]]
    socket.send_fds(_original(path), [json.dumps(request).encode()], ends)
    for end in ends if pipe else ends[1:]:
        os.close(end)
    return Forked(pipe[0] if pipe else None, news[0])


@functools.cache
def _original(path: str) -> socket.socket:
    """The line to the process with this PYTHONPATH that is forked; it ends when nobody holds this."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    task = {"cluster": {"worker": ["127.0.0.1:1"]}, "task": {"type": "worker", "index": 0}}
    job = {"PYTHONPATH": path, "TF_CONFIG": json.dumps(task)} if path else {}
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env={**os.environ, **QUIET, **job},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(line: socket.socket) -> dict[str, Any]:
    """Fork for each request; return in the new process only."""
    gc.freeze()  # a collection in a copy looks at what the script has made, not at all of TensorFlow
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, ends, _, _ = socket.recv_fds(line, 1 << 20, 2)
        if not data:
            os._exit(0)
        if os.fork() == 0:
            line.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _mind(*ends)
            return dict(json.loads(data))
        for end in ends:
            os.close(end)


def _mind(output: int, news: int) -> None:
    """Fork once more, and tell of the new process, in which alone this returns."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.closerange(3, news + 1)
        return
    os.close(output)
    os.write(news, f"{pid}\n".encode())
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        with contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
            if not os.WIFSTOPPED(status):
                os.write(news, f"ended {os.waitstatus_to_exitcode(status)}\n".encode())
                os._exit(0)
            os.write(news, b"stopped\n")


def _become(request: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Take on a script's arguments and environment; return its code and where to run it."""
    sys.modules["numpy"].random.seed()  # as the standard library's has been, at the fork
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = request["arguments"]
    if "trainjob_import_hook" in sys.modules:
        sys.modules["trainjob_import_hook"].renew()
    script = Path(sys.argv[0])
    sys.path[0] = str(script.parent)
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = str(script)
    return compile(script.read_bytes(), script, "exec"), main.__dict__


if __name__ == "__main__":
    for _name in ("keras", "tensorflow"):
        importlib.import_module(_name)
    _code, _names = _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
    exec(_code, _names)  # noqa: S102 - it is a script of the tests
