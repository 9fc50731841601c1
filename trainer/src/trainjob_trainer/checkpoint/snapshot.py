"""Copies of variables on the host, and the files of one checkpoint.

A distributed variable is read through its first local component. To read some kinds as a whole starts a
collective, which hangs unless every worker takes part at the same moment.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainjob_trainer.checkpoint.files import NOT_THERE, Files
from trainjob_trainer.errors import (
    CheckpointMismatch,
    CheckpointUnavailable,
    CheckpointUnreadable,
    first_line,
    is_tensorflows,
)

VariableGroups = Mapping[str, Sequence[Any]]
"""Keras or TensorFlow variables by group, such as `model` and `optimizer`; their order matters."""


@dataclass(frozen=True)
class NamedArray:
    """The value of one variable, on the host."""

    name: str
    value: np.ndarray[Any, Any]


HostGroups = Mapping[str, Sequence[NamedArray]]


def read(groups: VariableGroups) -> dict[str, list[NamedArray]]:
    """Copy the current value of every variable to the host; call it only between steps."""
    return {
        group: [NamedArray(variable_name(v), np.array(local_components(v)[0].numpy())) for v in variables]
        for group, variables in groups.items()
    }


def assign(groups: VariableGroups, host: HostGroups) -> None:
    """Set every variable, on every local device, to its value in `host`.

    Raises CheckpointMismatch, before it assigns any, if they differ in number, shape or type.
    """
    pairs = [pair for group, variables in groups.items() for pair in _match(group, variables, host)]
    for variable, array in pairs:
        for component in local_components(variable):
            component.assign(array.value)


def variable_name(variable: Any) -> str:
    """Return a name such as `dense/kernel`: Keras's path if there is one."""
    return str(getattr(variable, "path", None) or variable.name)


def local_components(variable: Any) -> Sequence[Any]:
    """Return the local components of a Keras, TensorFlow or distributed variable; of a plain one, itself."""
    inner = variable
    while not hasattr(inner, "values") and hasattr(inner, "value") and not callable(inner.value):
        inner = inner.value
    values = getattr(inner, "values", None)
    return tuple(values) if values is not None else (inner,)


def _match(group: str, variables: Sequence[Any], host: HostGroups) -> list[tuple[Any, NamedArray]]:
    """Pair variables with saved arrays: by name if the names are the same, else by position.

    Keras numbers layers within a process (`dense`, `dense_1`), so a model may have other names in another
    process.
    """
    arrays = host.get(group)
    if arrays is None:
        raise CheckpointMismatch(f"the checkpoint has no variables of {group!r}, only of {_listed(host)}")
    if len(arrays) != len(variables):
        raise CheckpointMismatch(
            f"{group}: the checkpoint holds {len(arrays)} variables, this program has {len(variables)}; "
            "it was written by another model"
        )
    by_name = {array.name: array for array in arrays}
    names = [variable_name(variable) for variable in variables]
    if len(by_name) == len(arrays) and set(names) == set(by_name):
        arrays = [by_name[name] for name in names]
    pairs = [(variable, arrays[index]) for index, variable in enumerate(variables)]
    for variable, array in pairs:
        _check_same_kind(group, variable, array)
    return pairs


def _check_same_kind(group: str, variable: Any, array: NamedArray) -> None:
    component = local_components(variable)[0]
    shape, dtype = tuple(component.shape), str(component.dtype.name)
    if shape != array.value.shape or dtype != array.value.dtype.name:
        raise CheckpointMismatch(
            f"{group}: {variable_name(variable)} is {dtype}{list(shape)} here, but the checkpoint's "
            f"{array.name} is {array.value.dtype.name}{list(array.value.shape)}; "
            "it was written by another model"
        )


def _listed(host: HostGroups) -> str:
    return ", ".join(sorted(host)) or "nothing"


# The folder of one checkpoint: a TensorFlow tensor bundle and a manifest.
#
# The bundle's CRCs cover the tensors but only parts of its index, and nothing reveals a truncated file. So
# the manifest holds sizes, a CRC of the index, and a CRC of itself.


FORMAT = 1
PREFIX = "variables"
MANIFEST = "manifest.json"
_INDEX = "variables.index"
_DATA = "variables.data-00000-of-00001"
_LARGEST = 256 << 20
"""Maximum size in bytes of a manifest or an index, which has a few hundred for each variable."""
_NONSENSE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Errors from reading something other than what was written."""


def write_bundle(folder: Path, groups: HostGroups, facts: Mapping[str, Any], files: Files) -> None:
    """Write a checkpoint, durably, into an existing folder that readers do not see yet.

    `tf.train.load_checkpoint` reads the groups as `<group>/<position>/<name>`. `facts` are further fields of
    the manifest (`step`, `epoch`, `jobUid`, `time`).
    """
    arrays = ((_key(g, i, one.name), one.value) for g, group in groups.items() for i, one in enumerate(group))
    files.write_tensors(folder / PREFIX, dict(arrays))
    for name in (_INDEX, _DATA):
        files.sync(folder / name)
    content = {"format": FORMAT, **facts, "groups": _described(groups), "files": _measured(folder, files)}
    files.write(folder / MANIFEST, json.dumps({**content, "crc32": _crc(content)}, indent=1).encode())
    files.sync(folder)


def read_manifest(folder: Path, files: Files) -> dict[str, Any]:
    """Return the manifest, checked against itself and the files beside it.

    Raises:
        CheckpointUnreadable: a file is missing, truncated or altered.
        CheckpointUnavailable: it has a later format; in all formats `format` and `crc32` mean the same.
        OSError: a file can't be read; whether it is whole is unknown.
    """
    try:
        manifest = json.loads(files.read(folder / MANIFEST, _LARGEST))
        content = {key: value for key, value in manifest.items() if key != "crc32"}
        if manifest["crc32"] != _crc(content):
            raise CheckpointUnreadable(f"{folder}: {MANIFEST} is damaged")
        if manifest["format"] > FORMAT:
            raise CheckpointUnavailable(
                f"{folder} has been written by a later version of the trainer (format {manifest['format']}, "
                f"this one knows {FORMAT}): continue with that version, or use a new folder"
            )
        if manifest["files"] != _measured(folder, files):
            raise CheckpointUnreadable(f"{folder}: its files are cut off or damaged")
    except (*NOT_THERE, *_NONSENSE) as error:
        raise CheckpointUnreadable(f"{folder}: {error}") from error
    return content


def read_bundle(folder: Path, files: Files) -> dict[str, list[NamedArray]]:
    """Return everything that was saved, checked by the bundle's CRCs.

    Raises:
        CheckpointUnreadable: a file is missing, truncated or altered.
        CheckpointUnavailable: as `read_manifest`.
        OSError, tf.errors.OpError: a file can't be read; whether it is whole is unknown.
    """
    try:
        described = read_manifest(folder, files)["groups"]
        dtypes = {
            _key(group, i, item["name"]): item["dtype"]
            for group, items in described.items()
            for i, item in enumerate(items)
        }
        tensors = files.read_tensors(folder / PREFIX, dtypes) if dtypes else {}
        return {
            group: [
                NamedArray(item["name"], tensors[_key(group, i, item["name"])])
                for i, item in enumerate(items)
            ]
            for group, items in described.items()
        }
    except (*NOT_THERE, *_NONSENSE) as error:
        raise CheckpointUnreadable(f"{folder}: {first_line(error)}") from error
    except Exception as error:
        if not is_tensorflows(error) or not _is_damage(error, folder, files):
            raise
        raise CheckpointUnreadable(f"{folder}: {first_line(error)}") from error


def _is_damage(error: Exception, folder: Path, files: Files) -> bool:
    """Return whether a TensorFlow error means damaged files, rather than a failed read.

    TensorFlow raises `NotFound` for a tensor missing from the index, and also if it can't list the folder.
    """
    kind = type(error).__name__
    if kind == "NotFoundError":
        read_manifest(folder, files)  # raises unless its files are there, with their sizes
        return "not found in checkpoint" in str(error)
    return kind in ("DataLossError", "OutOfRangeError", "InvalidArgumentError")


def _key(group: str, position: int, name: str) -> str:
    """Return the key; the position distinguishes two variables of the same name."""
    return f"{group}/{position}/{name}"


def _described(groups: HostGroups) -> dict[str, list[dict[str, Any]]]:
    return {
        group: [
            {"name": array.name, "shape": list(array.value.shape), "dtype": array.value.dtype.name}
            for array in arrays
        ]
        for group, arrays in groups.items()
    }


def _measured(folder: Path, files: Files) -> dict[str, Any]:
    index = files.read(folder / _INDEX, _LARGEST)
    return {
        _INDEX: {"bytes": len(index), "crc32": zlib.crc32(index)},
        _DATA: {"bytes": files.size(folder / _DATA)},
    }


def _crc(content: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())
