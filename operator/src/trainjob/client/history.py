"""The metrics of a run over its steps, from the files in its output ("Output folder" in docs/contract.md).

TensorBoard's files are read without TensorFlow: records of a length and a protocol buffer, each with its
checksum, of which a few fields are used (tensorflow/core/util/event.proto, summary.proto and tensor.proto,
whose numbers are fixed).
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from trainjob_trainer.contract.files import EVALUATIONS, HISTORY
from trainjob_trainer.contract.replicas import EVALUATOR

History = dict[str, dict[int, float]]
"""Values by step, by metric."""


def read_history(output: Path, on_damage: Callable[[str], None] = lambda _: None) -> History:
    """Return the metrics of training, and those of the evaluator under `val_` and the metric's name.

    `train_and_evaluate` and `fit` leave a line for each epoch, the former and loops of one's own also
    TensorBoard's files. Where training continued from a checkpoint, the values of the later start count.
    `on_damage` receives a sentence about each damaged file of TensorBoard.
    """
    found: History = {}
    for path in filter(Path.is_file, sorted(files_in(output, _EVENTS))):  # to open a pipe takes for ever
        try:
            for step, tag, value in read_events(path):
                found.setdefault(tag, {})[step] = value
        except DamagedEvents as damage:
            on_damage(str(damage))
    for prefix, file in _LINES.items():
        for step, metrics in _read_lines(output / file):
            for name, value in metrics.items():
                found.setdefault(f"{prefix}{name}", {})[step] = value
    return {name: dict(sorted(values.items())) for name, values in found.items()}


def metric_names(curves: Iterable[str]) -> list[str]:
    """Return the names without `val_`: the loss first, then those that are validated, then the others."""
    every = [*curves]
    names = dict.fromkeys(name.removeprefix("val_") for name in every)
    return sorted(names, key=lambda name: (name != "loss", f"val_{name}" not in every))


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
    for path in (*sorted(files_in(output, _EVENTS)), *(output / name for name in _LINES.values())):
        with suppress(OSError):
            found.append((path.name, path.stat().st_size))
    return tuple(found)


_EVENTS = "logs/train/events.out.tfevents.*"
_LINES = {"": HISTORY, "val_": f"{EVALUATOR}/{EVALUATIONS}"}
"""Files with a line for each result, by what comes before the names of its metrics."""


def files_in(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the files below a folder that match, as far as it isn't being removed."""
    with suppress(OSError):  # before Python 3.13, of a folder that vanishes meanwhile
        yield from folder.glob(pattern)


def _read_lines(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            # Its last one may be half written.
            with suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
                result = json.loads(line)
                yield int(result["step"]), {name: float(v) for name, v in result["metrics"].items()}


class DamagedEvents(Exception):
    """A file of TensorBoard is damaged; the text says where, and what isn't shown."""

    def __init__(self, path: Path, start: int) -> None:
        super().__init__(f"{path.name} is damaged at byte {start}: the curves end there, as in TensorBoard")


_LARGE = 1 << 16
"""Bytes of a record, far more than a few scalars take."""


def read_events(path: Path) -> Iterator[tuple[int, str, float]]:
    """Yield step, tag and value of each scalar in a file of TensorBoard; the file may still be written.

    As TensorBoard does, it ends at the first record that doesn't match its checksums: no later one can be
    found. The content of a large record without scalars, such as an image, isn't checked: none of it is used.

    Raises:
        DamagedEvents: after the scalars before the damage.
    """
    with path.open("rb") as file:
        start, size, of_length = 0, os.fstat(file.fileno()).st_size, cache(_checksum)
        while len(header := file.read(12)) == 12:
            length, checksum = struct.unpack("<QI", header)
            if of_length(header[:8]) != checksum:
                raise DamagedEvents(path, start)
            if start + 16 + length > size:
                return  # its end isn't written yet
            record, checksum = file.read(length), int.from_bytes(file.read(4), "little")
            scalars = _scalars(record)
            if (scalars != [] or length < _LARGE) and _checksum(record) != checksum:
                raise DamagedEvents(path, start)
            yield from scalars or ()
            start += 16 + length


def _scalars(record: bytes) -> list[tuple[int, str, float]] | None:
    """Return the scalars of an event; None if the record is none."""
    try:
        event = _fields(record)
        step = int(event[2][-1]) if event[2] else 0
        values = (_fields(each) for summary in event[5] for each in _fields(summary)[1])
        numbers = ((value[1][-1].decode(), _number(value)) for value in values)
        return [(step, tag, number) for tag, number in numbers if number is not None]
    except (ValueError, IndexError, TypeError, AttributeError, struct.error):
        return None


@cache
def _checksums() -> list[int]:
    """Return the CRC-32C of each byte (RFC 3720, B.4), which the standard library doesn't have."""
    table = list(range(256))
    for _ in range(8):
        table = [value >> 1 ^ (0x82F63B78 if value & 1 else 0) for value in table]
    return table


def _checksum(data: bytes) -> int:
    """Return the masked CRC-32C that stands after what it is of."""
    table, crc = _checksums(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _number(value: Mapping[int, list[Any]]) -> float | None:
    """Return the number of a `Summary.Value`; None for histograms, images and texts."""
    if value[2]:  # `simple_value`, as Keras 2 and other writers have it
        return float(struct.unpack("<f", value[2][-1])[0])
    tensor = _fields(value[8][-1] if value[8] else b"")
    size, form = {1: (4, "<f"), 2: (8, "<d")}.get((tensor[1] or [0])[-1], (0, ""))
    # As bytes, or a list of floats or doubles.
    content = next((tensor[field][-1] for field in (4, 5, 6) if tensor[field]), b"")
    is_scalar = size and len(content) == size and not any(tensor[2])  # its shape has no dimensions
    return float(struct.unpack(form, content)[0]) if is_scalar else None


def _fields(message: bytes) -> Mapping[int, list[Any]]:
    """Return the contents of a protocol buffer's fields, integers or bytes, by number."""
    fields = defaultdict[int, list[Any]](list)
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        if (kind := key & 7) == 0:
            number, at = _varint(message, at)
            fields[key >> 3].append(number)
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            size, at = _varint(message, at)
        fields[key >> 3].append(message[at : at + size])
        at += size
    return fields


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError("an integer of more than ten bytes")
