"""The edge of the process: how an error that nobody caught becomes a message and an exit code.

A hook, so that it covers a user's own loop as well, where no code of ours stands around the failing step.
Processes of a cluster leave without the interpreter's and TensorFlow's shutdown: it waits many seconds for
peers that died, and may wait for ever for a data pipeline that calls Python and that the error keeps alive.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from types import TracebackType
from typing import NoReturn

from trainjob_trainer.errors import PeerLost, Preempted, TrainerError
from trainjob_trainer.reporting.progress import ProgressFile
from trainjob_trainer.stop import StopRequest
from trainjob_trainer.task import Task

_LOST = ("UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError")
_COLLECTIVE_WORDS = (
    "collective",
    "coordination",
    "heartbeat",
    "/job:worker",
    "remote worker",
    "socket closed",
)

_TASK = re.compile(r"/job:(\w+)(?:/replica:\d+)?/task:(\d+)")
_ABORTED = re.compile(r"Collective ops is aborted by: (.*(?:(?<=:)\n.*)?)")


def install_edge(task: Task | None, progress: ProgressFile, stop: StopRequest) -> None:
    """From now on every uncaught error of the main thread leaves the process through here.

    `task` is None while it is not known: the error may be that TF_CONFIG is malformed.
    """

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        explained = explain_failure(error, task, stop)
        if explained is not None:
            leave(task, progress, explained)
        sys.__excepthook__(kind, error, trace)
        progress.fail(kind.__name__, traceback.format_exception_only(kind, error)[-1].strip())
        if task is not None and task.cluster and not isinstance(error, KeyboardInterrupt):
            exit_now(1)

    sys.excepthook = hook


def explain_failure(error: BaseException, task: Task | None, stop: StopRequest) -> TrainerError | None:
    """The failure behind an error, or None when it is the user program's own."""
    if isinstance(error, TrainerError):
        return error
    if task is None or task.is_evaluator or not task.has_peers or not is_peer_loss(error):
        return None
    if stop.requested:
        return Preempted(f"{task.replica} was asked to stop")
    return PeerLost(
        f"{task.replica} lost {_lost_peer(error, task)}, which ended or can't be reached{_reason(error)}"
    )


def is_peer_loss(error: BaseException) -> bool:
    """Whether TensorFlow says that a collective could not go on."""
    names, text = {kind.__name__ for kind in type(error).__mro__}, str(error).lower()
    if not type(error).__module__.startswith("tensorflow"):
        return False
    return "UnavailableError" in names or (
        bool(names & {*_LOST, "InternalError"}) and any(word in text for word in _COLLECTIVE_WORDS)
    )


def _lost_peer(error: BaseException, task: Task) -> str:
    """The replica that TensorFlow names, last if it names several: reporters come before the lost one."""
    named = [f"{role}-{index}" for role, index in _TASK.findall(str(error))]
    others = [name for name in named if name != task.replica]
    return others[-1] if others else "another worker"


def _reason(error: BaseException) -> str:
    """TensorFlow's reason, which stands below the traced graph's own stack."""
    found = _ABORTED.search(str(error))
    return f" (TensorFlow: {' '.join(found[1].split())[:200]})" if found else ""


def leave(task: Task | None, progress: ProgressFile, error: TrainerError) -> NoReturn:
    """Say why, in the log and in the report, and end the process."""
    who = f"{task.replica}: " if task else ""
    print(f"trainjob: {who}{error.reason}: {error}", file=sys.stderr)
    progress.fail(error.reason, str(error))
    exit_now(int(error.exit_code))


def exit_now(code: int) -> NoReturn:
    """End without atexit handlers and without TensorFlow's shutdown barrier."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # closed, or its reader has gone
            continue
    os._exit(code)
