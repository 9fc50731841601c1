"""What lies in TensorBoard's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf


def read_events(folder: Path) -> dict[str, dict[int, Any]]:
    """Return scalars as numbers and histograms as arrays of rows (from, to, count), by tag and step."""
    found: dict[str, dict[int, Any]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                array = tf.make_ndarray(value.tensor)
                found.setdefault(value.tag, {})[event.step] = array if array.ndim else float(array)
    return found
