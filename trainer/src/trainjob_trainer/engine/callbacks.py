"""The user's callbacks: which of them need each batch, which state they keep, and where they write.

This module imports no Keras, because it is needed while Keras is being imported.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainjob_trainer.checkpoint.snapshot import HostGroups, NamedArray
from trainjob_trainer.edge import before_exit

TRAIN_METHODS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
TEST_METHODS = ("on_test_batch_begin", "on_test_batch_end")


def sees_batches(callback: Any, methods: Iterable[str] = TRAIN_METHODS) -> bool:
    """Return whether a callback does, or may do, something before or after each batch."""
    is_content = _CONTENT.get(type(callback).__name__)
    if is_content and type(callback).__module__.startswith("keras.") and is_content(callback):
        return False
    found = (getattr(callback, name, None) for name in methods)
    return any(not getattr(method, "_is_default", False) for method in found)


_CONTENT: Mapping[str, Callable[[Any], bool]] = {
    "ProgbarLogger": lambda _: True,
    "TensorBoard": lambda one: (
        one.update_freq == "epoch" and not one.write_steps_per_second and not one._stop_batch
    ),
    "ModelCheckpoint": lambda one: one.save_freq == "epoch",
    "BackupAndRestore": lambda one: one.save_freq == "epoch",
    "OrbaxCheckpoint": lambda one: one.save_freq == "epoch",
}
"""Conditions under which Keras's own callbacks don't need their batch methods, by class."""


# State of Keras's own callbacks between epochs, kept across a restart.
#
# Without it the first epoch after a restart would always be "the best so far": a worse model would
# overwrite a better one, and patience would start from zero.


_BATCHES_SEEN = ("_batches_seen_since_last_saving", "_last_batch_seen")
_MEMORY = {
    "EarlyStopping": ("wait", "best", "best_epoch", "stopped_epoch"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "ModelCheckpoint": ("best", "epochs_since_last_save", *_BATCHES_SEEN),
    "OrbaxCheckpoint": ("best", *_BATCHES_SEEN),
    "SwapEMAWeights": ("_ema_weights_in_model",),
}
_WEIGHTS = "best-weights-{}"


def remembered(callbacks: Sequence[Any]) -> list[dict[str, Any]]:
    """Return one entry per callback: its class and state, both empty for a class not in `_MEMORY`."""
    return [{"kind": kind, **_values(callback, kind)} for callback in callbacks for kind in [_kind(callback)]]


def remembered_weights(callbacks: Sequence[Any]) -> HostGroups:
    """Return the best weights of `EarlyStopping(restore_best_weights=True)`, by the callback's position."""
    return {
        _WEIGHTS.format(position): [NamedArray(str(i), array) for i, array in enumerate(weights)]
        for position, callback in enumerate(callbacks)
        for weights in [getattr(callback, "best_weights", None)]
        if _kind(callback) == "EarlyStopping" and weights
    }


def put_back(callbacks: Sequence[Any], memory: Sequence[Mapping[str, Any]], groups: HostGroups) -> None:
    """Restore the state of each callback; a callback whose class has changed keeps its initial state."""
    for position, (callback, entry) in enumerate(zip(callbacks, memory)):
        kind = _kind(callback)
        if not kind or entry.get("kind") != kind:
            continue
        for name, value in entry.items():
            if name != "kind" and hasattr(callback, name):
                setattr(callback, name, value)
        weights = groups.get(_WEIGHTS.format(position))
        if weights:
            callback.best_weights = [array.value for array in weights]


def keep_files(callbacks: Sequence[Any]) -> None:
    """Make a resumed script's `CSVLogger` append, and keep `BackupAndRestore` from restoring again."""
    for callback in callbacks:
        kinds = _keras_kinds(callback)
        if "CSVLogger" in kinds:
            callback.append = True
        if "BackupAndRestore" in kinds:
            callback._load_model = lambda: None


def _kind(callback: Any) -> str:
    return next((kind for kind in _MEMORY if kind in _keras_kinds(callback)), "")


def _values(callback: Any, kind: str) -> dict[str, Any]:
    values = {name: getattr(callback, name, None) for name in _MEMORY.get(kind, ())}
    return {name: value for name, value in values.items() if value is not None}


def _keras_kinds(callback: Any) -> set[str]:
    return {kind.__name__ for kind in type(callback).__mro__ if kind.__module__.startswith("keras.")}


# Files of replicas other than the writer: they go to a private folder that is removed at exit.
#
# These replicas still make the calls, because reading some variables takes all workers.


_folders: list[Path] = []
_REMOTE = "://"


def private_path(path: Any) -> str:
    """Return the path in this replica's private folder that replaces `path`."""
    if not _folders:
        _folders.append(Path(tempfile.mkdtemp(prefix="trainjob-private-")))
        atexit.register(remove_private_folder)
        before_exit(remove_private_folder)
    text = str(path)
    if text.startswith(str(_folders[0])):
        return text
    if _REMOTE in text:
        return str(_folders[0] / text.replace(_REMOTE, "/"))
    absolute = Path(text).absolute()
    return str(_folders[0] / absolute.relative_to(absolute.anchor))


def has_private_files() -> bool:
    """Return whether this replica has a private folder."""
    return bool(_folders)


def remove_private_folder() -> None:
    """Remove the private folder with all its files."""
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)


def isolate(callbacks: Iterable[Any]) -> None:
    """Redirect what Keras's own callbacks write to the private folder; what they read stays where it is."""
    for callback in callbacks:
        kinds = _keras_kinds(callback)
        for kind, attribute in _WRITTEN_PATHS.items():
            if kind in kinds:
                setattr(callback, attribute, private_path(getattr(callback, attribute)))
        if "CSVLogger" in kinds:
            Path(callback.filename).parent.mkdir(parents=True, exist_ok=True)
        if "BackupAndRestore" in kinds:
            _isolate_backup(callback)
        if "OrbaxCheckpoint" in kinds:
            callback.checkpointer = _NoCheckpointer()


class _NoCheckpointer:
    """Takes all calls of Orbax's checkpointer and of its futures, and writes nothing.

    Orbax makes the folder with the callback, so the path can't be redirected.
    """

    def __getattr__(self, name: str) -> Callable[..., _NoCheckpointer]:
        return lambda *_, **__: self


_WRITTEN_PATHS = {"ModelCheckpoint": "filepath", "CSVLogger": "filename", "TensorBoard": "log_dir"}
_BACKUP_PATHS = (
    "backup_dir",
    "_weights_path",
    "_training_metadata_path",
    "_prev_weights_path",
    "_prev_training_metadata_path",
)


def _isolate_backup(callback: Any) -> None:
    """Restore from the writer's folder like every replica, then write and delete in the private folder."""
    begin = callback.on_train_begin

    def on_train_begin(logs: Any = None) -> None:
        begin(logs)
        for attribute in _BACKUP_PATHS:
            if hasattr(callback, attribute):
                setattr(callback, attribute, private_path(getattr(callback, attribute)))

    callback.on_train_begin = on_train_begin
