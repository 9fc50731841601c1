"""The metrics of a run over its steps, from the files in its output ("Output folder" in docs/contract.md).

TensorBoard's files are read without TensorFlow: records of a length and a protocol buffer, of which a few
fields are used (tensorflow/core/util/event.proto, summary.proto and tensor.proto, whose numbers are fixed).
"""

from __future__ import annotations

import json
import math
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainjob_trainer.contract.files import EVALUATIONS, HISTORY
from trainjob_trainer.contract.replicas import EVALUATOR

History = dict[str, dict[int, float]]
"""Values by step, by metric."""


def read_history(output: Path) -> History:
    """Return the metrics of training, and those of the evaluator under `val_` and the metric's name.

    `train_and_evaluate` and `fit` leave a line for each epoch, the former and loops of one's own also
    TensorBoard's files. Where training continued from a checkpoint, the values of the later start count.
    """
    found: History = {}
    for path in sorted(files_in(output, _EVENTS)):
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
    with suppress(FileNotFoundError), path.open(encoding="utf-8") as lines:
        for line in lines:
            # Its last one may be half written.
            with suppress(ValueError, KeyError, TypeError, AttributeError):
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
        with suppress(ValueError, IndexError, TypeError, AttributeError, struct.error):
            event = _fields(record)
            step = int(event[2][-1]) if event[2] else 0
            for value in (_fields(each) for summary in event[5] for each in _fields(summary)[1]):
                if (number := _number(value)) is not None:
                    yield step, value[1][-1].decode(), number
        at += 16 + length


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
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
