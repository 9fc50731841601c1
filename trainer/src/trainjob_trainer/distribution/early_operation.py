"""Finds the user's line that ran a TensorFlow operation before the strategy was built.

TensorFlow configures its collectives when its runtime starts, and the first operation starts it. The
strategy then fails with "Collective ops must be configured at program startup", far from the line at fault.
"""

from __future__ import annotations

import ast
import functools
import sys
import sysconfig
import traceback
from pathlib import Path
from typing import Any

from trainjob_trainer.errors import InvalidConfiguration

_ANSWER = "must be configured at program startup"
_PACKAGE = str(Path(__file__).parent)
_LIBRARIES = tuple(
    {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
)

_first: list[traceback.FrameSummary] = []


def watch_first_operation() -> None:
    """Record the user's line that starts TensorFlow's runtime, from now on.

    `tensorflow` must be imported. TensorFlow has no public hook for this; without the private one only the
    script's text is searched.
    """
    context: Any = sys.modules.get("tensorflow.python.eager.context")
    original = getattr(getattr(context, "Context", None), "ensure_initialized", None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def ensure_initialized(self: Any) -> Any:
        if not getattr(self, "_initialized", True) and not _first:
            _first.extend(_user_frames(traceback.extract_stack()))
        return original(self)

    context.Context.ensure_initialized = ensure_initialized


def is_early_operation(error: BaseException) -> bool:
    """Return whether TensorFlow complains that its runtime was already started."""
    return isinstance(error, RuntimeError) and _ANSWER in str(error)


def explain_early_operation(
    *, script: Path | None = None, first: traceback.FrameSummary | None = None
) -> InvalidConfiguration:
    """Return the error for the user, with the line at fault as far as it is known.

    By default `script` is the one that Python was started with, and `first` is what `watch_first_operation`
    recorded.
    """
    frame = first or (_first[-1] if _first else None)
    path = script or _main_script()
    where = _described(frame) if frame else _likely_line(path)
    return InvalidConfiguration(
        f"a TensorFlow operation ran before the distribution strategy was built: {where}. "
        "Workers can only be connected before the first operation: move it below the line that builds "
        "the strategy, or into the functions that the trainer calls"
    )


def _user_frames(stack: traceback.StackSummary) -> list[traceback.FrameSummary]:
    return [
        frame
        for frame in stack
        if not frame.filename.startswith((_PACKAGE, *_LIBRARIES)) and not frame.filename.startswith("<frozen")
    ]


def _described(frame: traceback.FrameSummary) -> str:
    return (
        f"{frame.filename}:{frame.lineno}: {frame.line}" if frame.line else f"{frame.filename}:{frame.lineno}"
    )


def _main_script() -> Path | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file) if file else None


def _likely_line(script: Path | None) -> str:
    """Return the first call into TensorFlow that the script makes while it is imported."""
    try:
        source = script.read_text(encoding="utf-8") if script else ""
        call = _first_module_level_call(ast.parse(source))
    except (OSError, ValueError, SyntaxError):
        call = None
    if script is None or call is None:
        return "in a module imported before"
    return f"probably {script}:{call.lineno}: {source.splitlines()[call.lineno - 1].strip()}"


def _first_module_level_call(tree: ast.Module) -> ast.Call | None:
    names = {
        alias.asname or alias.name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.partition(".")[0] == "tensorflow"
    }
    skipped = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    for statement in tree.body:
        if isinstance(statement, skipped):
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and _is_operation(ast.unparse(node.func), names):
                return node
    return None


def _is_operation(called: str, names: set[str]) -> bool:
    module, _, rest = called.partition(".")
    return module in names and not rest.startswith(
        ("config.", "get_logger", "function", "distribute.", "random.set")
    )
