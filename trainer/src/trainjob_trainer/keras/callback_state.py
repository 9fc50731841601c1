"""The user's callbacks: which of them need each batch, and which state they keep.

This module imports no Keras, because it is needed while Keras is being imported.
"""

from __future__ import annotations

import contextlib
import os
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trainjob_trainer.checkpoint.snapshot import HostGroups, NamedArray

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
    "CSVLogger": (),
}
_FILE_SIZE = "file size"
_OWN = "own values"
_WEIGHTS = "best-weights-{}"


def remembered(callbacks: Sequence[Any]) -> list[dict[str, Any]]:
    """Return one entry per callback: its class and state, both empty for a class not in `_MEMORY`."""
    entries = []
    for callback in callbacks:
        kind = _kind(callback)
        values = {name: getattr(callback, name, None) for name in _MEMORY.get(kind, ())}
        if kind == "CSVLogger":
            with contextlib.suppress(OSError):
                values[_FILE_SIZE] = os.path.getsize(callback.filename)  # noqa: PTH202
        known = {name: value for name, value in values.items() if value is not None}
        entries.append({"kind": kind, **known, _OWN: _own_values(callback)})
    return entries


def remembered_weights(callbacks: Sequence[Any]) -> HostGroups:
    """Return the best weights of `EarlyStopping(restore_best_weights=True)`, by the callback's position."""
    return {
        _WEIGHTS.format(position): [NamedArray(str(i), array) for i, array in enumerate(weights)]
        for position, callback in enumerate(callbacks)
        for weights in [getattr(callback, "best_weights", None)]
        if _kind(callback) == "EarlyStopping" and weights
    }


def put_back(callbacks: Sequence[Any], memory: Sequence[Mapping[str, Any]], groups: HostGroups) -> list[str]:
    """Restore the state of each callback; a callback whose class has changed keeps its initial state.

    Return the attributes of the user's own callbacks that had other values, such as `Average.count`.
    """
    lost: list[str] = []
    for position, (callback, entry) in enumerate(zip(callbacks, memory)):
        kind, own, before = _kind(callback), _own_values(callback), entry.get(_OWN, {})
        if own.get("class") == before.get("class"):
            lost += [f"{own['class']}.{name}" for name in before if own.get(name) != before[name]]
        if not kind or entry.get("kind") != kind:
            continue
        size = entry.get(_FILE_SIZE)
        with contextlib.suppress(OSError):  # there is none on this disk
            if size is not None and os.path.getsize(callback.filename) > size:  # noqa: PTH202
                os.truncate(callback.filename, size)  # its later rows come again
        for name, value in entry.items():
            if name != "kind" and hasattr(callback, name):
                setattr(callback, name, value)
        weights = groups.get(_WEIGHTS.format(position))
        if weights:
            callback.best_weights = [array.value for array in weights]
    return lost


def keep_files(callbacks: Sequence[Any]) -> None:
    """Make a resumed script's `CSVLogger` append, and keep `BackupAndRestore` from restoring again."""
    for callback in callbacks:
        kinds = keras_kinds(callback)
        if "CSVLogger" in kinds:
            callback.append = True
        if "BackupAndRestore" in kinds:
            callback._load_model = lambda: None


def _kind(callback: Any) -> str:
    return next((kind for kind in _MEMORY if kind in keras_kinds(callback)), "")


class _Texts(reprlib.Repr):
    """Short texts of plain values, arrays and variables; of other objects, the class."""

    def repr_instance(self, x: Any, level: int) -> str:
        value = getattr(x, "_value", x)  # a Keras variable's: reading that itself may need all workers
        is_plain = hasattr(value, "shape") or (type(x).__module__ == "builtins" and not callable(x))
        text = super().repr_instance(value, level) if is_plain else type(x).__name__
        return re.sub("'[^']*:0'", "", text)  # a variable's name may count those before it


_TEXTS = _Texts()
_TEXTS.maxother = _TEXTS.maxlist = _TEXTS.maxdict = 200


def _own_values(callback: Any) -> dict[str, str]:
    """Return the attributes of a callback of the user's own class, in short; empty for Keras's classes."""
    if keras_kinds(callback) != {"Callback"}:
        return {}
    values = {name: one for name, one in vars(callback).items() if name not in ("params", "_model")}
    return {"class": type(callback).__name__, **{name: _TEXTS.repr(one) for name, one in values.items()}}


def keras_kinds(callback: Any) -> set[str]:
    """Return the names of the classes of Keras's that a callback is of."""
    return {kind.__name__ for kind in type(callback).__mro__ if kind.__module__.startswith("keras.")}
