"""Trains a small CNN, and worker 0 prints its final weights.

    python weights.py MODEL

Every worker runs it, with TF_CONFIG.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from trainjob_trainer import train_and_evaluate

GLOBAL_BATCH = 32
STEPS = 100
BETWEEN: dict[str, Callable[[], list[Any]]] = {
    "plain": list,
    "norm_synchronized": lambda: [keras.layers.BatchNormalization(synchronized=True)],
    "norm": lambda: [keras.layers.BatchNormalization()],
    "dropout": lambda: [keras.layers.Dropout(0.2)],
}


def model() -> Any:
    """Return it compiled, with one layer more, or none."""
    layers = keras.layers
    convolution = layers.Conv2D(8, 3, activation="relu")
    tail = [layers.Flatten(), layers.Dense(10)]
    net = keras.Sequential([keras.Input((8, 8, 1)), convolution, *BETWEEN[sys.argv[1]](), *tail])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.Adam(1e-3), loss=loss)
    return net


def examples() -> Any:
    """Return 500 of them: in batches of 32 they leave a rest."""
    random = np.random.default_rng(1)
    images = random.random((500, 8, 8, 1), dtype=np.float32)
    return tf.data.Dataset.from_tensor_slices((images, random.integers(0, 10, 500)))


settings = {"steps_per_epoch": STEPS, "global_batch": GLOBAL_BATCH, "export": False}
result = train_and_evaluate(model, examples, **settings)
if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
    values = [
        np.asarray(v.value.values[0] if hasattr(v.value, "values") else v.value)
        for v in result.model.variables
    ]
    kept = [value.ravel().tolist() for value in values if value.dtype.kind == "f"]
    print(json.dumps({"weights": kept}), flush=True)
os._exit(0)  # a peer may be gone: the runtime's end would wait for it
