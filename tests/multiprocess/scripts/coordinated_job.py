"""A small training through the library, for a job with parameter servers."""

from __future__ import annotations

import os

import keras
import numpy as np
import tensorflow as tf

from trainjob_trainer import train_and_evaluate


def examples(count: int, seed: int) -> tf.data.Dataset:
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(count, 8)).astype("float32")
    return tf.data.Dataset.from_tensor_slices((inputs, (inputs.sum(axis=1) > 0).astype("int32")))


def model() -> keras.Model:
    layers = keras.layers
    net = keras.Sequential(
        [
            keras.Input((8,)),
            layers.Dense(16, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.1),
            layers.Dense(2),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    net.compile(keras.optimizers.Adam(0.002), loss=loss, metrics=["accuracy"])
    return net


result = train_and_evaluate(
    model,
    lambda: examples(3200, seed=0),
    lambda: examples(103, seed=1),
    steps_per_epoch=100,
    epochs=int(os.environ["STEPS"]) // 100,
    global_batch=32,
    export=False,
)
taken = int(result.model.optimizer.iterations)
print(f"counted {result.step} steps, applied {taken}", flush=True)
