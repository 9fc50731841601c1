"""The metrics of a run over its steps, from the files in its output ("Output folder" in docs/contract.md).

TensorBoard's files are read without TensorFlow: records of a length and a protocol buffer, of which a few
fields are used (tensorflow/core/util/event.proto, summary.proto and tensor.proto, whose numbers are fixed).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from trainjob_trainer.contract.files import EVALUATIONS, HISTORY
from trainjob_trainer.contract.replicas import EVALUATOR

History = dict[str, dict[int, float]]
"""Values by step, by metric."""

_FLOAT, _DOUBLE = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_history(output: Path) -> History:
    """Return the metrics of training, and those of the evaluator under `val_` and the metric's name.

    `train_and_evaluate` and `fit` leave a line for each epoch, the former and loops of one's own also
    TensorBoard's files. Where training continued from a checkpoint, the values of the later start count.

    Args:
        output: the job's output folder.
    """
    found: History = {}
    for path in _event_files(output):
        for step, tag, value in read_events(path):
            found.setdefault(tag, {})[step] = value
    for prefix, file in _LINES.items():
        for step, metrics in _read_lines(output / file):
            for name, value in metrics.items():
                found.setdefault(f"{prefix}{name}", {})[step] = value
    return {name: dict(sorted(values.items())) for name, values in found.items()}


def thin_out(curve: Mapping[int, float], most: int) -> list[tuple[int, float]]:
    """Return at most about so many finite points of a curve: of each part the smallest and the largest."""
    points = [(step, value) for step, value in curve.items() if math.isfinite(value)]
    if len(points) <= most:
        return points
    size = math.ceil(2 * len(points) / most)
    shown = {points[0], points[-1]}
    for start in range(0, len(points), size):
        part = points[start : start + size]
        shown |= {min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])}
    return sorted(shown)


def history_state(output: Path) -> tuple[tuple[str, int], ...]:
    """Return what changes with the files that `read_history` reads."""
    found = list[tuple[str, int]]()
    for path in (*_event_files(output), *(output / name for name in _LINES.values())):
        with suppress(OSError):
            found.append((path.name, path.stat().st_size))
    return tuple(found)


_LINES = {"": HISTORY, "val_": f"{EVALUATOR}/{EVALUATIONS}"}
"""Files with a line for each result, by what comes before the names of its metrics."""


def files_in(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the files below a folder that match, as far as it isn't being removed."""
    with suppress(OSError):  # before Python 3.13, of a folder that vanishes meanwhile
        yield from folder.glob(pattern)


def _event_files(output: Path) -> list[Path]:
    return sorted(files_in(output / "logs" / "train", "events.out.tfevents.*"))


def _read_lines(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    with suppress(FileNotFoundError), path.open(encoding="utf-8") as lines:
        for line in lines:
            with suppress(
                ValueError, KeyError, TypeError, AttributeError
            ):  # its last line may be half written
                result = json.loads(line)
                yield int(result["step"]), {name: float(v) for name, v in result["metrics"].items()}


def read_events(path: Path) -> Iterator[tuple[int, str, float]]:
    """Yield step, tag and value of each scalar in a file of TensorBoard; the file may still be written."""
    content = path.read_bytes()
    at = 0
    while at + 12 <= len(content):
        (length,) = struct.unpack_from("<Q", content, at)
        record = content[at + 12 : at + 12 + length]
        if len(record) < length:
            return
        with suppress(ValueError, IndexError, struct.error):
            yield from _scalars(record)
        at += 16 + length


def _scalars(event: bytes) -> Iterator[tuple[int, str, float]]:
    step, summaries = 0, list[bytes]()
    for number, value in _fields(event):
        if number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, value in _fields(summary):
            if number == 1 and isinstance(value, bytes) and (named := _scalar(value)) is not None:
                yield step, *named


def _scalar(value: bytes) -> tuple[str, float] | None:
    """Return tag and number of a `Summary.Value`; None for histograms, images and texts."""
    tag, number = "", None
    for field, content in _fields(value):
        if field == 1 and isinstance(content, bytes):
            tag = content.decode()
        elif field == 2 and isinstance(
            content, bytes
        ):  # `simple_value`, as Keras 2 and other writers have it
            (number,) = struct.unpack("<f", content)
        elif field == 8 and isinstance(content, bytes):
            number = _number(content)
    return None if number is None else (tag, number)


def _number(tensor: bytes) -> float | None:
    """Return the value of a scalar tensor of floats, else None."""
    kind, content = 0, b""
    for field, value in _fields(tensor):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field == 2 and value:  # its shape has dimensions
            return None
        elif field in (4, 5, 6) and isinstance(value, bytes):  # as bytes, or a list of floats or doubles
            content = value
    size, form = {_FLOAT: (4, "<f"), _DOUBLE: (8, "<d")}.get(kind, (0, ""))
    return float(struct.unpack(form, content)[0]) if size and len(content) == size else None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and content of each field of a protocol buffer."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
