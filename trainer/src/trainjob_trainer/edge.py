"""The end of the process: requests to stop, and the message and exit code of an uncaught error.

Errors go through a hook, since no code of this package surrounds the steps of a custom loop. Processes of a
cluster exit without the shutdown of the interpreter and TensorFlow, which waits many seconds for dead peers,
and may wait forever for a data pipeline that calls Python and that the error keeps alive.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import select
import shutil
import signal
import socket
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from trainjob_trainer.contract.reports import LONGEST_MESSAGE, shorten
from trainjob_trainer.errors import (
    FULL,
    NcclFailed,
    OutputFull,
    PeerLost,
    Preempted,
    StorageUnavailable,
    TrainerError,
    is_outage,
    is_tensorflows,
    system_number,
)
from trainjob_trainer.reporting.progress import ProgressFile, storage_is_away
from trainjob_trainer.task import Task

EVALUATOR_STOPPED = 128 + signal.SIGTERM
_SECONDS_BETWEEN_LOOKS = 0.25
_SECONDS_BETWEEN_QUESTIONS = 0.1


class StopRequest:
    """The request to stop this process, and the time that it has from then on.

    Python's handlers don't run while the main thread is inside TensorFlow, which also installs a handler of
    its own when a cluster is formed, and never uses it. So a thread listens, and restores the handler if it
    was replaced. One gap remains: while TensorFlow waits for peers that are not there yet, it holds the
    interpreter's lock, and only SIGKILL ends the process.
    """

    def __init__(self) -> None:
        self._requested = threading.Event()
        self.patience_seconds = 0.0
        """Seconds after the signal in which the main thread may end by itself; training needs some."""
        self.is_futile: Callable[[], bool] = lambda: False
        """Called meanwhile from another thread: whether there is nothing left to wait for."""

    @property
    def requested(self) -> bool:
        """Whether the process has been asked to stop; read at every step boundary."""
        return self._requested.is_set()

    def install(self, leave: Callable[[], None]) -> None:
        """Start a thread that listens for SIGTERM; outside the main thread, do nothing.

        `leave` is called after the signal, when the patience is over; it must not return.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.signal(signal.SIGTERM, _left_to_the_thread)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        watch = threading.Thread(target=self._watch, args=(reader, leave), name="trainjob-stop", daemon=True)
        watch.start()
        _spare_forked_children()

    def _watch(self, reader: int, leave: Callable[[], None]) -> None:
        # The C function that the system calls: any thread may set it, Python's own API needs the main thread.
        get, put = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
        get.argtypes, get.restype = [ctypes.c_int], ctypes.c_void_p
        put.argtypes, put.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
        ours = get(signal.SIGTERM)
        # Other signals write into the pipe too.
        while not select.select([reader], [], [], _SECONDS_BETWEEN_LOOKS)[0] or (
            signal.SIGTERM not in os.read(reader, 64)
        ):
            if get(signal.SIGTERM) != ours:
                put(signal.SIGTERM, ours)
        asked = time.monotonic()
        self._requested.set()
        while time.monotonic() - asked < self.patience_seconds:
            if self.is_futile() or storage_is_away.is_set():
                break
            time.sleep(_SECONDS_BETWEEN_QUESTIONS)
        leave()


def is_listening() -> bool:
    """Return whether SIGTERM still has our handler: a script may have set its own."""
    return signal.getsignal(signal.SIGTERM) is _left_to_the_thread


def _left_to_the_thread(number: int, frame: FrameType | None) -> None:
    """Do nothing: without a handler the process would end at once."""


def _spare_forked_children() -> None:
    """Restore the default SIGTERM handler in a forked child.

    Otherwise the child would ignore the signal and report it to its parent, since they share the pipe. The
    signal is blocked during the fork, so that it can't reach the child too early.
    """
    mask = threading.local()

    def hold() -> None:
        mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def release(*, in_child: bool = False) -> None:
        if in_child and is_listening():
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask.before)

    child = functools.partial(release, in_child=True)
    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=child)


_LOST = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")
_COLLECTIVE_WORDS = (
    "collective",
    "coordination",
    "heartbeat",
    "/job:worker",
    "remote worker",
    "socket closed",
)
_RING_IS_DOWN = "horovod has been shut down. this was caused by an exception on one of the ranks"
_NCCL = re.compile(r"\bNCCL: ([^.(\n]+)")
"""TensorFlow's form of NCCL's errors."""
_TASK = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)")
_ABORTED = re.compile(r"Collective ops is aborted by: (.*(?:(?<=:)\n.*)?)")


def install_edge(
    task: Task | None,
    progress: ProgressFile,
    stop: StopRequest,
    *,
    output: Path = Path(),
) -> None:
    """Handle every uncaught error of the main thread from now on; a process of a cluster ends at once.

    `task` is None while it is unknown: the error may be a malformed TF_CONFIG.
    """
    process = os.getpid()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() != process:  # the script has forked it
            sys.__excepthook__(kind, error, trace)
            return
        explained = explain_failure(error, task, stop, output)
        if explained is not error:
            sys.__excepthook__(kind, error, trace)
        if explained is not None:
            leave(task, progress, explained)
        progress.fail(kind.__name__, describe(error, trace))
        if task is not None and task.cluster and not isinstance(error, KeyboardInterrupt):
            exit_now(1)

    sys.excepthook = hook


def explain_failure(
    error: BaseException, task: Task | None, stop: StopRequest, output: Path = Path()
) -> TrainerError | None:
    """Return the failure behind an error, or None if the error is the user program's own."""
    if isinstance(error, TrainerError):
        return error
    if system_number(error) in FULL:
        path = getattr(error, "filename", None) or output
        return OutputFull(f"no space left for {path}: free some, or give the output a larger volume")
    nccl = _NCCL.search(str(error))
    if nccl is not None and is_tensorflows(error) and "remote process" not in nccl[1]:
        return NcclFailed(f"NCCL: {nccl[1].strip()}; check {_nccl_uses()}")
    if task is None or task.is_evaluator or not task.has_peers or not is_peer_loss(error):
        return StorageUnavailable(describe(error, error.__traceback__)) if is_outage(error) else None
    if stop.requested:
        return Preempted(f"{task.replica} was asked to stop")
    # The last replica that TensorFlow names: those that report the loss come first.
    named = ["another worker", *(f"{role}-{index}" for role, index in _TASK.findall(str(error)))]
    lost = [name for name in named if name != task.replica][-1]
    found = _ABORTED.search(str(error))
    reason = f" (TensorFlow: {shorten(' '.join(found[1].split()), 200)})" if found else ""
    return PeerLost(f"{task.replica} lost {lost}, which ended or can't be reached{reason}")


def _nccl_uses() -> str:
    """Return what NCCL works with on this machine: its interfaces and the size of its shared memory."""
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    chosen = os.environ.get("NCCL_SOCKET_IFNAME")
    interface = f"NCCL_SOCKET_IFNAME={chosen}" if chosen else "NCCL_SOCKET_IFNAME isn't set"
    memory = "/dev/shm"  # noqa: S108 - NCCL's
    with contextlib.suppress(OSError):
        found = os.statvfs(memory)
        memory += f" ({found.f_blocks * found.f_frsize >> 20} MiB)"
    return (
        f"the network interface ({', '.join(names) or 'none'} here; {interface}), the size of {memory}, the "
        "driver, and whether two workers share one GPU"
    )


def is_peer_loss(error: BaseException) -> bool:
    """Return whether the error is TensorFlow's or Horovod's, about a collective that could not continue."""
    names, text = {kind.__name__ for kind in type(error).__mro__}, str(error).lower()
    if "HorovodInternalError" in names or _RING_IS_DOWN in text:
        return True
    if not type(error).__module__.startswith("tensorflow"):
        return False
    return "UnavailableError" in names or (
        bool(names & {*_LOST, "InternalError"}) and any(word in text for word in _COLLECTIVE_WORDS)
    )


_PLACES = [str(Path(__file__).parent), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))]
_NOT_THE_USERS = tuple({os.path.realpath(place) for place in _PLACES} | set(_PLACES))
_DEFINED_AT = re.compile(r'^\s*File "(.+)", line (\d+), in .*$')
_OF_SEVERAL = re.compile(r"^\(\d+\)\s+(?:[A-Z_]+:\s+)?")
_NODE = re.compile(r"\s*(?:\[\[|\[Op:| for '\{\{node ).*$")
_BOLD = re.compile(r"\x1b\[[0-9;]*m")
_CALL = "Arguments received by "
"""Keras ends the message of an error within a layer with the arguments of the call."""


def describe(error: BaseException, trace: TracebackType | None) -> str:
    """Return one sentence, with the line of the user's script that led to the error."""
    words = _BOLD.sub("", str(error)).partition(_CALL)[0]
    frames: list[tuple[str, int | None]] = [(one.filename, one.lineno) for one in traceback.extract_tb(trace)]
    if any(kind.__name__ == "OpError" for kind in type(error).__mro__):
        words, more = read_graph_error(words)
        frames += more
    place = next((frame for frame in reversed(frames) if is_users(frame[0])), None)
    words = _NODE.sub("", " ".join(words.split()))
    text = f"{type(error).__name__}: {words}" if words else type(error).__name__
    shown = shorten(text, LONGEST_MESSAGE)
    if type(error).__name__ == "ResourceExhaustedError":
        shown += "; half the batch with gradient_accumulation_steps=2 in the optimizer needs half the memory"
    return f"{Path(place[0]).name}:{place[1]}: {shown}" if place else shown


def read_graph_error(message: str) -> tuple[str, list[tuple[str, int | None]]]:
    """Return the cause in a TensorFlow error, and the files and lines where its operation was created.

    The message begins with these lines, and ends with the cause and with names of nodes. Of several causes,
    such as those of several devices, the first is returned: the others follow from it.
    """
    frames: list[tuple[str, int | None]] = []
    cause: list[str] = []
    for line in message.splitlines():
        found = _DEFINED_AT.match(line)
        if found:
            frames.append((found[1], int(found[2])))
            cause = []
        elif line.strip() in ("", "<stack traces unavailable>") or line.startswith("Detected at node"):
            cause = cause if frames and cause else []
        else:
            cause.append(_NODE.sub("", line).strip())
    causes = [_OF_SEVERAL.sub("", one) for one in cause if _OF_SEVERAL.match(one)]
    return causes[0] if causes else " ".join(filter(None, cause)), frames


def is_users(file: str) -> bool:
    """Return whether a file is the user's: not Python's, a library's or ours, also through links."""
    if file.startswith("<") or "__autograph_generated_file" in file:
        return False
    return not (file.startswith(_NOT_THE_USERS) or os.path.realpath(file).startswith(_NOT_THE_USERS))


def leave(task: Task | None, progress: ProgressFile, error: TrainerError) -> NoReturn:
    """Log and report the error, and end the process."""
    who = f"{task.replica}: " if task else ""
    print(f"trainjob: {who}{error.reason}: {error}", file=sys.stderr)
    progress.fail(error.reason, str(error), error.replicas)
    exit_now(int(error.exit_code))


def private_name() -> str:
    """Return how the names of this process's folders for temporary files begin; an agent knows it too."""
    return f"trainjob-private-{os.uname().nodename}-{os.getpid()}-"


def exit_now(code: int) -> NoReturn:
    """End the process without atexit handlers and without TensorFlow's shutdown barrier."""
    with contextlib.suppress(OSError):
        for folder in Path(tempfile.gettempdir()).glob(f"{private_name()}*"):
            shutil.rmtree(folder, ignore_errors=True)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # closed, or its reader is gone
            continue
    os._exit(code)
