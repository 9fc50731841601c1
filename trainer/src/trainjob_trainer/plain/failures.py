"""The end of a failed script: its cause goes to the progress report, and it doesn't wait for lost peers."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from trainjob_trainer.checkpoint.files import explain_write_error
from trainjob_trainer.edge import exit_now, explain_failure, is_listening, leave
from trainjob_trainer.engine.callbacks import remove_private_folder
from trainjob_trainer.errors import OutputFull, TrainerError
from trainjob_trainer.plain.fit_call import ScriptCall
from trainjob_trainer.plain.process import PlainProcess, current_process
from trainjob_trainer.replica import leave_on_request
from trainjob_trainer.reporting.progress import ProgressFile

_PLACES = [str(Path(__file__).parents[1]), *map(sysconfig.get_path, ("stdlib", "purelib", "platlib"))]
_NOT_THE_USERS = tuple({os.path.realpath(place) for place in _PLACES} | set(_PLACES))
_DEFINED_AT = re.compile(r'^\s*File "(.+)", line (\d+), in .*$')
_OF_SEVERAL = re.compile(r"^\(\d+\)\s+(?:[A-Z_]+:\s+)?")
_NODE = re.compile(r"\s*(?:\[\[|\[Op:| for '\{\{node ).*$")
_BOLD = re.compile(r"\x1b\[[0-9;]*m")
_CALL = "Arguments received by "
"""Keras ends the message of an error within a layer with the arguments of the call."""


def install_hook(process: PlainProcess) -> None:
    """Handle every uncaught error of the main thread from now on.

    A process of a cluster ends at once, without atexit handlers. TensorFlow's shutdown would wait for the
    other processes, which wait for this one, or for a data pipeline that calls Python.
    """

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        process.failed = True
        explained = explain(error, process)
        if explained is not None:
            if explained is not error:
                sys.__excepthook__(kind, error, trace)
            remove_private_folder()
            leave(process.task, process.progress, explained)
        sys.__excepthook__(kind, error, trace)
        process.progress.fail(kind.__name__, describe(error, trace))
        if process.task.cluster and not isinstance(error, KeyboardInterrupt):
            remove_private_folder()
            exit_now(1)

    sys.excepthook = hook


def joined_process() -> PlainProcess:
    """Return this process; end it if its environment is malformed, before it writes to a wrong folder."""
    try:
        return current_process()
    except TrainerError as error:
        leave(None, ProgressFile.from_environment(os.environ), error)


def end_on_request(process: PlainProcess) -> None:
    """End on SIGTERM, which TensorFlow would swallow; a `fit` that takes steps saves its progress.

    A script's own handler is kept.
    """
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        process.stop.install(lambda: _end(process))


def _end(process: PlainProcess) -> None:
    if is_listening():
        if isinstance(process.call, ScriptCall):
            with contextlib.suppress(TrainerError):
                process.call.record.writer.settle()
        remove_private_folder()
        leave_on_request(process.task, process.progress)


def explain(error: BaseException, process: PlainProcess) -> TrainerError | None:
    """Return the failure behind an error, or None if the error is the script's own."""
    if isinstance(error, OSError):
        written = explain_write_error(error, Path(str(error.filename or process.environment.output_dir)))
        return written if isinstance(written, OutputFull) else None
    return explain_failure(error, process.task, process.stop)


def describe(error: BaseException, trace: TracebackType | None) -> str:
    """Return one sentence, with the line of the user's script that led to the error."""
    words = _BOLD.sub("", str(error)).partition(_CALL)[0]
    place = _last_of_user((frame.filename, frame.lineno) for frame in traceback.extract_tb(trace))
    if any(kind.__name__ == "OpError" for kind in type(error).__mro__):
        words, frames = read_graph_error(words)
        place = _last_of_user(frames) or place
    words = _NODE.sub("", " ".join(words.split()))
    text = f"{type(error).__name__}: {words}" if words else type(error).__name__
    shown = text if len(text) <= 500 else text[:497] + "..."
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


def _last_of_user(frames: Iterable[tuple[str, int | None]]) -> tuple[str, int | None] | None:
    found = [frame for frame in frames if _is_users(frame[0])]
    return found[-1] if found else None


def _is_users(file: str) -> bool:
    """Return whether a file is the user's: not Python's, a library's or ours, also through links."""
    if file.startswith("<") or "__autograph_generated_file" in file:
        return False
    return not (file.startswith(_NOT_THE_USERS) or os.path.realpath(file).startswith(_NOT_THE_USERS))
