"""When a script is through: the final marker is written as it exits with success, not when a `fit` ends.

What follows `fit` (a test, an export) belongs to the job. Were the marker there before, a failure in it
would find the job finished after the restart, and never be made good. The writer's end is the job's: what
another worker does later is not waited for.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
from typing import Any

from trainjob_trainer.checkpoint.final import FinalMarker
from trainjob_trainer.edge import leave
from trainjob_trainer.errors import TrainerError
from trainjob_trainer.plain.fit_call import ModelRecord
from trainjob_trainer.plain.process import PlainProcess
from trainjob_trainer.plain.writers import remove_private_folder


def expect(process: PlainProcess, record: ModelRecord) -> None:
    """Mark the first model's last step as final when the script ends well. Later models change nothing."""
    if record.number == 1:
        _note_exit_codes(process)
        atexit.register(_finish, process, record)


def _finish(process: PlainProcess, record: ModelRecord) -> None:
    if process.failed or len(record.past) < record.calls:
        return
    if process.is_writer:
        try:
            marker = FinalMarker(record.saved, process.environment.uid, ended_at=process.step)
            record.store.mark_final(marker)
        except TrainerError as error:
            remove_private_folder()
            leave(process.task, process.progress, error)
    process.progress.update(state="finished", step=process.step)
    process.progress.flush()


def _note_exit_codes(process: PlainProcess) -> None:
    """`sys.exit(1)` ends a script without an error that a hook would see."""
    original = sys.exit

    @functools.wraps(original)
    def leave(status: Any = None, /) -> None:
        if threading.current_thread() is threading.main_thread():
            process.failed = status not in (None, 0)
        original(status)

    sys.exit = leave  # type: ignore[assignment]
