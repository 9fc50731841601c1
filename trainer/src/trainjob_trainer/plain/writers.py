"""Files of replicas other than the writer: they go to a private folder that is removed at exit.

These replicas still make the calls, since reading some variables takes all workers.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from trainjob_trainer.engine.callbacks import has_private_files, private_path
from trainjob_trainer.plain.process import current_process


def redirect_saving(module: ModuleType) -> None:
    """Wrap the functions of `keras.src.saving.saving_api` that save and load models and weights.

    A replica other than the writer loads what it has saved itself from its private folder, and any other file
    from the given path.
    """
    for name, position in (("save_model", 1), ("save_weights", 1)):
        _redirect(module, name, position, _for_writing)
    for name, position in (("load_model", 0), ("load_weights", 1)):
        _redirect(module, name, position, _for_reading)


def redirect_export(module: ModuleType) -> None:
    """Wrap `Model.export` of `keras.src.models.model`."""
    _redirect(module.Model, "export", 1, _for_writing)


def _redirect(owner: Any, name: str, position: int, choose: Callable[[Any], Any]) -> None:
    original = getattr(owner, name, None)
    if original is None or hasattr(original, "_trainjob_redirected"):
        return

    @functools.wraps(original)
    def redirected(*args: Any, **kwargs: Any) -> Any:
        process = current_process()
        if process.is_writer and choose is _for_writing:
            process.claim_output()
        if not process.is_writer:
            if len(args) > position:
                args = (*args[:position], choose(args[position]), *args[position + 1 :])
            elif "filepath" in kwargs:
                kwargs["filepath"] = choose(kwargs["filepath"])
        return original(*args, **kwargs)

    redirected._trainjob_redirected = True  # type: ignore[attr-defined]
    setattr(owner, name, redirected)


def _for_writing(path: Any) -> Any:
    if not isinstance(path, (str, Path)):
        return path  # an open file is left to the script
    private = private_path(path)
    Path(private).parent.mkdir(parents=True, exist_ok=True)
    if current_process().task.is_evaluator:
        print(f"trainjob: the evaluator leaves {path} alone and writes to {private}", file=sys.stderr)
    return private


def _for_reading(path: Any) -> Any:
    if not has_private_files() or not isinstance(path, (str, Path)):
        return path
    private = private_path(path)
    return private if Path(private).exists() else path
