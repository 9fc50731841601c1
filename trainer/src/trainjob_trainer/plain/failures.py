"""How a script that fails leaves: its cause in the progress report, and no wait for peers that are gone."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

from trainjob_trainer.checkpoint.files import explain_write_error
from trainjob_trainer.edge import exit_now, explain_failure, leave
from trainjob_trainer.errors import OutputFull, TrainerError
from trainjob_trainer.plain.process import PlainProcess, current_process
from trainjob_trainer.plain.writers import remove_private_folder
from trainjob_trainer.replica import leave_on_request
from trainjob_trainer.reporting.progress import ProgressFile
from trainjob_trainer.stop import is_listening

_PACKAGE = str(Path(__file__).resolve().parents[1])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def install_hook(process: PlainProcess) -> None:
    """From now on every uncaught error of the main thread goes through here.

    A process of a cluster ends at once, without atexit handlers: TensorFlow's shutdown would wait for the
    others, and they wait for this one; or for a data pipeline that calls Python.
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
    """This process; one whose environment is malformed ends here, before it trains into the wrong place."""
    try:
        return current_process()
    except TrainerError as error:
        leave(None, ProgressFile.from_environment(os.environ), error)


def end_on_request(process: PlainProcess) -> None:
    """End on SIGTERM, which TensorFlow would swallow, with what the last whole epoch has saved.

    A script's own handler stays the one that decides.
    """
    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        process.stop.install(lambda: _end(process))


def _end(process: PlainProcess) -> None:
    if is_listening():
        remove_private_folder()
        leave_on_request(process.task, process.progress)


def explain(error: BaseException, process: PlainProcess) -> TrainerError | None:
    """The failure behind an error, or None when it is the script's own."""
    if isinstance(error, OSError):
        written = explain_write_error(error, Path(str(error.filename or process.environment.output_dir)))
        return written if isinstance(written, OutputFull) else None
    return explain_failure(error, process.task, process.stop)


def describe(error: BaseException, trace: TracebackType | None) -> str:
    """One sentence, with the line of the user's script that led to the error."""
    words = " ".join(str(error).split())
    text = f"{type(error).__name__}: {words}" if words else type(error).__name__
    frame = _user_frame(trace)
    shown = text if len(text) <= 500 else text[:497] + "..."
    return f"{Path(frame.filename).name}:{frame.lineno}: {shown}" if frame else shown


def _user_frame(trace: TracebackType | None) -> traceback.FrameSummary | None:
    frames = [
        frame
        for frame in traceback.extract_tb(trace)
        if not frame.filename.startswith((_PACKAGE, *_LIBRARIES, "<"))
        and "__autograph_generated_file" not in frame.filename
    ]
    return frames[-1] if frames else None
