"""Batch normalization under several workers."""

from __future__ import annotations

from typing import Any

import keras

from trainjob_trainer.reporting.lines import announce

_SHOWN = 5


def unsynchronized(model: Any) -> list[str]:
    """Names of the layers whose statistics are those of each replica's own part of a batch."""
    kind = keras.layers.BatchNormalization
    return [
        layer.name
        for layer in model._flatten_layers()
        if isinstance(layer, kind) and layer.trainable and not layer.synchronized
    ]


def tell_unsynchronized(model: Any, replicas: int) -> None:
    """Say what several replicas make of a model's batch normalization.

    Args:
        model: built.
        replicas: that train it.
    """
    names = unsynchronized(model) if replicas > 1 else []
    if not names:
        return
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    announce(
        f"{shown}: BatchNormalization normalizes each worker's part of a batch by itself, and keeps the "
        "moving statistics of worker 0's; with synchronized=True it takes the whole batch"
    )
