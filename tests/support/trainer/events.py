"""What lies in TensorBoard's files."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf


def read_events(folder: Path) -> dict[str, dict[int, float]]:
    """Return scalars by tag and step."""
    found: dict[str, dict[int, float]] = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = float(tf.make_ndarray(value.tensor))
    return found
