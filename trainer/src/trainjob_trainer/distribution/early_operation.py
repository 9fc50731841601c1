"""Finds the user's line that ran a TensorFlow operation before the strategy was built.

TensorFlow configures its collectives when its runtime starts, and the first operation starts it. The
strategy then fails with "Collective ops must be configured at program startup", far from the line at fault.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainjob_trainer.errors import InvalidConfiguration, PortInUse
from trainjob_trainer.task import Task

_NOT_THE_USERS = (
    str(Path(__file__).parent),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
    "<frozen",
)
_first: list[traceback.FrameSummary] = []


def watch_first_operation() -> None:
    """Record the user's line that starts TensorFlow's runtime, from now on.

    `tensorflow` must be imported. TensorFlow has no public hook for this.
    """
    context: Any = sys.modules.get("tensorflow.python.eager.context")
    original = getattr(getattr(context, "Context", None), "ensure_initialized", None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def ensure_initialized(self: Any) -> Any:
        if not getattr(self, "_initialized", True) and not _first:
            stack = traceback.extract_stack()
            _first.extend(one for one in stack if not one.filename.startswith(_NOT_THE_USERS))
        return original(self)

    context.Context.ensure_initialized = ensure_initialized


@contextlib.contextmanager
def explained(task: Task) -> Iterator[None]:
    """Explain the errors of code that makes TensorFlow listen, and say what to do.

    Raises:
        InvalidConfiguration: an operation ran before; the message has the user's line, if it was seen.
        PortInUse: another process uses this replica's address.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, RuntimeError) and "must be configured at program startup" in str(error):
            raise explain_early_operation() from error
        if "start gRPC server" in str(error):
            raise PortInUse(
                f"{task.replica} cannot listen on {task.address}: the port is taken by another process"
            ) from error
        raise


def explain_early_operation(first: traceback.FrameSummary | None = None) -> InvalidConfiguration:
    """Return the error for the user; by default `first` is what `watch_first_operation` recorded."""
    frame = first or (_first[-1] if _first else None)
    where = f"{frame.filename}:{frame.lineno}: {frame.line}" if frame else "before the trainer was imported"
    return InvalidConfiguration(
        f"a TensorFlow operation ran before the distribution strategy was built: {where}. "
        "Workers can only be connected before the first operation: move it below the line that builds "
        "the strategy, or into the functions that the trainer calls"
    )
