"""Files of replicas that are not the writer: the same calls, into a private folder that is removed at exit.

They still make the calls, as reading some variables takes all workers.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from trainjob_trainer.plain.process import current_process

_folders: list[Path] = []
_REMOTE = "://"


def private_path(path: Any) -> str:
    """Where this replica writes what the script wants at `path`."""
    if not _folders:
        _folders.append(Path(tempfile.mkdtemp(prefix="trainjob-private-")))
        atexit.register(remove_private_folder)
    text = str(path)
    if text.startswith(str(_folders[0])):
        return text
    if _REMOTE in text:
        return str(_folders[0] / text.replace(_REMOTE, "/"))
    absolute = Path(text).absolute()
    return str(_folders[0] / absolute.relative_to(absolute.anchor))


def remove_private_folder() -> None:
    """Drop everything that went there."""
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)


def isolate(callbacks: Iterable[Any]) -> None:
    """Turn Keras's own writing callbacks to the private folder; what they read stays where it is."""
    for callback in callbacks:
        kinds = {kind.__name__ for kind in type(callback).__mro__ if kind.__module__.startswith("keras.")}
        for kind, attribute in _WRITTEN_PATHS.items():
            if kind in kinds:
                setattr(callback, attribute, private_path(getattr(callback, attribute)))
        if "CSVLogger" in kinds:
            Path(callback.filename).parent.mkdir(parents=True, exist_ok=True)
        if "BackupAndRestore" in kinds:
            _isolate_backup(callback)


_WRITTEN_PATHS = {"ModelCheckpoint": "filepath", "CSVLogger": "filename", "TensorBoard": "log_dir"}
_BACKUP_PATHS = (
    "backup_dir",
    "_weights_path",
    "_training_metadata_path",
    "_prev_weights_path",
    "_prev_training_metadata_path",
)


def _isolate_backup(callback: Any) -> None:
    """Restore from the writer's folder like everyone, then write and delete in a private one."""
    begin = callback.on_train_begin

    def on_train_begin(logs: Any = None) -> None:
        begin(logs)
        for attribute in _BACKUP_PATHS:
            if hasattr(callback, attribute):
                setattr(callback, attribute, private_path(getattr(callback, attribute)))

    callback.on_train_begin = on_train_begin


def redirect_saving(module: ModuleType) -> None:
    """Wrap `keras.src.saving.saving_api`: models and weights, saved and loaded.

    A replica that is not the writer finds again what it has saved itself; anything else it loads from
    where it is.
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
        return path  # an open file is the script's own affair
    private = private_path(path)
    Path(private).parent.mkdir(parents=True, exist_ok=True)
    if current_process().task.is_evaluator:
        print(f"trainjob: the evaluator leaves {path} alone and writes to {private}", file=sys.stderr)
    return private


def _for_reading(path: Any) -> Any:
    if not _folders or not isinstance(path, (str, Path)):
        return path
    private = private_path(path)
    return private if Path(private).exists() else path
