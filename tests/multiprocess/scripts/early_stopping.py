"""A training that gets worse from its first step on: by held-out examples it ends early."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from trainjob_trainer import train_and_evaluate


class Steps(keras.layers.Layer):
    """Its one weight is the number of steps, by an optimizer of rate 1 and a loss that only falls."""

    def build(self, shape: Any) -> None:
        del shape
        self.steps = self.add_weight(shape=(), initializer="zeros", name="steps")

    def call(self, inputs: Any) -> Any:
        return 0.0 * inputs + self.steps


def steps_taken(truth: Any, steps: Any) -> Any:
    del truth
    return steps


def model() -> Any:
    net = keras.Sequential([keras.Input((1,)), Steps()])
    net.compile(keras.optimizers.SGD(1.0), loss=lambda _, steps: -steps, metrics=[steps_taken])
    return net


def examples(count: int) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensors((tf.ones([1]), tf.ones([1]))).repeat(count)


result = train_and_evaluate(
    model,
    lambda: examples(1600),
    lambda: examples(10),
    steps=10**6,
    global_batch=8,
    keep=1,
    export=False,
    monitor="val_steps_taken",
    mode="min",
    patience=2,
    keep_best=True,
)
weight = float(result.model.weights[0].numpy())
print(f"handed over {result.model_step} with {weight:.0f} of {result.step}", flush=True)
