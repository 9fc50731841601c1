"""An ordinary Keras script that says how many images a second it trains on, after the first epoch.

SPEED_MODEL is `resnet` (ResNet-50, 256 images of 224x224) or `tiny`; SPEED_PRECISION is a policy of Keras.
"""

from __future__ import annotations

import os
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

BATCH, SIZE, BATCHES = {"resnet": (256, 224, 20), "tiny": (8, 32, 4)}[os.environ["SPEED_MODEL"]]


class Clock(keras.callbacks.Callback):
    """Takes the time of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, *_: Any) -> None:
        self._began = time.perf_counter()

    def on_epoch_end(self, *_: Any) -> None:
        self.seconds.append(time.perf_counter() - self._began)


def build() -> keras.Model:
    if os.environ["SPEED_MODEL"] == "resnet":
        return keras.applications.ResNet50(weights=None, input_shape=(SIZE, SIZE, 3))
    layers = [keras.layers.Conv2D(4, 3, activation="relu"), keras.layers.GlobalAveragePooling2D()]
    return keras.Sequential([keras.Input((SIZE, SIZE, 3)), *layers, keras.layers.Dense(1000, "softmax")])


keras.utils.set_random_seed(1)
keras.mixed_precision.set_global_policy(os.environ["SPEED_PRECISION"])
# Without a job it is Keras alone: a strategy would leave XLA out there.
strategy = tf.distribute.MultiWorkerMirroredStrategy() if "TF_CONFIG" in os.environ else None
random = np.random.default_rng(1)
images = tf.constant(random.normal(size=(BATCH, SIZE, SIZE, 3)).astype("float32"))
labels = tf.constant(random.integers(0, 1000, size=BATCH))
data = tf.data.Dataset.from_tensors((images, labels)).repeat(BATCHES)
with strategy.scope() if strategy else tf.device(None):
    model = build()
    model.compile("adam", "sparse_categorical_crossentropy")
clock = Clock()
losses = model.fit(
    data, epochs=int(os.environ.get("SPEED_EPOCHS", "4")), verbose=0, callbacks=[clock]
).history["loss"]
print(f"images/s {BATCH * BATCHES / min(clock.seconds[1:]):.1f}", flush=True)
print(f"compiled by XLA: {model.jit_compile}", flush=True)
print(f"losses {' '.join(format(one, '.4f') for one in losses)}", flush=True)
