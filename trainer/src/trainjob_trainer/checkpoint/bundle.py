"""One checkpoint's folder: TensorFlow's own tensor bundle beside a manifest of what it holds.

The bundle's CRCs cover the tensors but only parts of its index, and nothing says that a file has been
cut off, so the manifest holds sizes and a CRC of the index, and one of itself.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainjob_trainer.checkpoint.files import NOT_THERE, Array, Files, is_tensorflows
from trainjob_trainer.checkpoint.snapshot import HostGroups, NamedArray
from trainjob_trainer.errors import CheckpointUnavailable, CheckpointUnreadable, first_line

FORMAT = 1
PREFIX = "variables"
MANIFEST = "manifest.json"
_INDEX = "variables.index"
_DATA = "variables.data-00000-of-00001"
_LARGEST = 256 << 20
"""Bytes of a manifest or an index: a few hundred for each variable."""
_NONSENSE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading something else than was written ends with."""


def write_bundle(folder: Path, groups: HostGroups, facts: Mapping[str, Any], files: Files) -> None:
    """Fill an existing folder, down to the disk.

    Args:
        folder: not visible to readers yet.
        groups: what to save; readable by `tf.train.load_checkpoint` as `<group>/<position>/<name>`.
        facts: further fields of the manifest (`step`, `epoch`, `jobUid`, `time`).
        files: the file operations.
    """
    files.write_tensors(folder / PREFIX, _keyed(groups))
    for name in (_INDEX, _DATA):
        files.sync(folder / name)
    content = {"format": FORMAT, **facts, "groups": _described(groups), "files": _measured(folder, files)}
    files.write(folder / MANIFEST, json.dumps({**content, "crc32": _crc(content)}, indent=1).encode())
    files.sync(folder)


def read_manifest(folder: Path, files: Files) -> dict[str, Any]:
    """The manifest, checked against itself and the files beside it.

    Raises:
        CheckpointUnreadable: a file is missing, cut off or altered.
        CheckpointUnavailable: it is of a later format; in all of them `format` and `crc32` mean the same.
        OSError: nobody knows.
    """
    try:
        manifest = json.loads(files.read(folder / MANIFEST, _LARGEST))
        content = {key: value for key, value in manifest.items() if key != "crc32"}
        if manifest["crc32"] != _crc(content):
            raise CheckpointUnreadable(f"{folder}: {MANIFEST} is damaged")
        if manifest["format"] > FORMAT:
            raise CheckpointUnavailable(
                f"{folder} has been written by a later version of the trainer (format {manifest['format']}, "
                f"this one knows {FORMAT}): go on with that version, or with a new folder"
            )
        if manifest["files"] != _measured(folder, files):
            raise CheckpointUnreadable(f"{folder}: its files are cut off or damaged")
    except (*NOT_THERE, *_NONSENSE) as error:
        raise CheckpointUnreadable(f"{folder}: {error}") from error
    return content


def read_bundle(folder: Path, files: Files) -> dict[str, list[NamedArray]]:
    """Everything that was saved, checked by the bundle's CRCs.

    Raises:
        CheckpointUnreadable: a file is missing, cut off or altered.
        CheckpointUnavailable: as `read_manifest`.
        OSError, tf.errors.OpError: nobody knows.
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
    except _NONSENSE as error:
        raise CheckpointUnreadable(f"{folder}: {first_line(error)}") from error
    except Exception as error:
        if not is_tensorflows(error) or not _is_damage(error, folder, files):
            raise
        raise CheckpointUnreadable(f"{folder}: {first_line(error)}") from error


def _is_damage(error: Exception, folder: Path, files: Files) -> bool:
    """Whether an error of TensorFlow's tells of the files' content, rather than of an attempt to read them.

    It says `NotFound` of a tensor that the index lacks, and also where it could not list the folder.
    """
    kind = type(error).__name__
    if kind == "NotFoundError":
        read_manifest(folder, files)  # its files are there, as long as they were
        return "not found in checkpoint" in str(error)
    return kind in ("DataLossError", "OutOfRangeError", "InvalidArgumentError")


def _keyed(groups: HostGroups) -> dict[str, Array]:
    return {
        _key(g, i, array.name): array.value for g, arrays in groups.items() for i, array in enumerate(arrays)
    }


def _key(group: str, position: int, name: str) -> str:
    """The position keeps two variables of one name apart."""
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
