"""The user's callbacks: which of them look at each batch, what they remember, and where they write.

It imports no Keras: it is needed while Keras is being imported.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainjob_trainer.checkpoint.snapshot import HostGroups, NamedArray

TRAIN_METHODS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")
TEST_METHODS = ("on_test_batch_begin", "on_test_batch_end")


def sees_batches(callback: Any, methods: Iterable[str] = TRAIN_METHODS) -> bool:
    """Whether a callback does something before or after each batch, or might."""
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
}
"""Keras's callbacks that have methods for batches and may do without: when they do."""


# What Keras's own callbacks remember between epochs, kept across a restart.
#
# Without it the first epoch after a restart would always be "the best so far": a worse model would overwrite
# a better one, and patience would begin anew.


_MEMORY = {
    "EarlyStopping": ("wait", "best", "best_epoch", "stopped_epoch"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "ModelCheckpoint": ("best", "epochs_since_last_save"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
}
_WEIGHTS = "best-weights-{}"


def remembered(callbacks: Sequence[Any]) -> list[dict[str, Any]]:
    """One entry a callback: its class and the values it decides by; nothing for classes unknown here."""
    return [{"kind": kind, **_values(callback, kind)} for callback in callbacks for kind in [_kind(callback)]]


def remembered_weights(callbacks: Sequence[Any]) -> HostGroups:
    """The best weights that `EarlyStopping(restore_best_weights=True)` holds, by the callback's position."""
    return {
        _WEIGHTS.format(position): [NamedArray(str(i), array) for i, array in enumerate(weights)]
        for position, callback in enumerate(callbacks)
        for weights in [getattr(callback, "best_weights", None)]
        if _kind(callback) == "EarlyStopping" and weights
    }


def put_back(callbacks: Sequence[Any], memory: Sequence[Mapping[str, Any]], groups: HostGroups) -> None:
    """Give each callback what it remembered; one that has been replaced by another kind starts anew."""
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
    """Have a resumed script go on with its log instead of emptying it, and restore once, not twice."""
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


# Files of replicas that are not the writer: the same calls, into a private folder that is removed at exit.
#
# They still make the calls, as reading some variables takes all workers.


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


def has_private_files() -> bool:
    """Whether this replica has written any."""
    return bool(_folders)


def remove_private_folder() -> None:
    """Drop everything that went there."""
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)


def isolate(callbacks: Iterable[Any]) -> None:
    """Turn Keras's own writing callbacks to the private folder; what they read stays where it is."""
    for callback in callbacks:
        kinds = _keras_kinds(callback)
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
