"""Finds the user's line that ran a TensorFlow operation before the strategy was built.

TensorFlow configures its collectives when its runtime starts, and the first operation starts it. The
strategy then fails with "Collective ops must be configured at program startup", far from the line at fault.
"""

from __future__ import annotations

import functools
import sys
import traceback
from typing import Any

from trainjob_trainer.edge import is_users
from trainjob_trainer.errors import InvalidConfiguration

_first: list[traceback.FrameSummary] = []


def watch_first_operation() -> None:
    """Record the user's line that starts TensorFlow's runtime, from now on.

    `tensorflow` must be imported. TensorFlow has no public hook for this; without the private one the line
    stays unknown.
    """
    context: Any = sys.modules.get("tensorflow.python.eager.context")
    original = getattr(getattr(context, "Context", None), "ensure_initialized", None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def ensure_initialized(self: Any) -> Any:
        if not getattr(self, "_initialized", True) and not _first:
            _first.extend(frame for frame in traceback.extract_stack() if is_users(frame.filename))
        return original(self)

    context.Context.ensure_initialized = ensure_initialized


def is_early_operation(error: BaseException) -> bool:
    """Return whether TensorFlow complains that its runtime was already started."""
    return isinstance(error, RuntimeError) and "must be configured at program startup" in str(error)


def explain_early_operation() -> InvalidConfiguration:
    """Return the error for the user, with the line at fault if it was recorded."""
    where = "in a module imported before"
    if _first:
        where = f"{_first[-1].filename}:{_first[-1].lineno}: {_first[-1].line}"
    return InvalidConfiguration(
        f"a TensorFlow operation ran before the distribution strategy was built: {where}. "
        "Workers can only be connected before the first operation: move it below the line that builds "
        "the strategy, or into the functions that the trainer calls"
    )
