"""What Keras's own callbacks remember between epochs, kept across a restart.

Without it the first epoch after a restart would always be "the best so far": a worse model would overwrite
a better one, and patience would begin anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainjob_trainer.checkpoint.snapshot import HostGroups, NamedArray

_MEMORY = {
    "EarlyStopping": ("wait", "best", "best_epoch", "stopped_epoch"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "ModelCheckpoint": ("best", "epochs_since_last_save"),
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
