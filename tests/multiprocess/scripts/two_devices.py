"""The same training on a processor that is divided into two devices and on one of them, in one process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from support.trainer import alone
from trainjob_trainer import Task, library
from trainjob_trainer.custom_loop import Run
from trainjob_trainer.distribution.strategy import build_strategy

# In batches of 32 the last one is a single example: of two devices one has none.
HELD_OUT = np.random.default_rng(1).normal(size=(33, 4)).astype("float32")
TRAINING = np.random.default_rng(0).normal(size=(100, 4)).astype("float32")


def examples(inputs: np.ndarray) -> Any:
    return tf.data.Dataset.from_tensor_slices((inputs, inputs.sum(axis=1, keepdims=True)))


class Averaging(keras.Sequential):  # type: ignore[misc,unused-ignore]
    """Takes the mean of its loss itself, over the rows that it is given."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self(x, training=True)))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self._loss_tracker.update_state(loss)
        return self.get_metrics_result()


def model(kind: type[keras.Sequential], optimizer: keras.optimizers.Optimizer, *metrics: str) -> Any:
    net = kind([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    net.compile(optimizer, "mse", metrics=list(metrics) or None)
    return net


MODELS = {
    "keras": lambda: model(keras.Sequential, keras.optimizers.Adam(0.01), "mae"),
    "own": lambda: model(Averaging, keras.optimizers.SGD(0.01)),
}


def train(strategy: Any, name: str, folder: Path) -> dict[str, Any]:
    library.build_strategy = lambda *_, **__: strategy
    data = {"data": examples(TRAINING), "heldout": examples(HELD_OUT)}
    result = alone.train(folder, MODELS[name], **data, epochs=4, global_batch=32)
    first, bias, second, last = weights = result.model.get_weights()
    away = np.tanh(HELD_OUT @ first + bias) @ second + last - HELD_OUT.sum(axis=1, keepdims=True)
    return {
        "strategy": type(strategy).__name__,
        "devices": strategy.num_replicas_in_sync,
        "metrics": dict(result.metrics),
        "weights": np.concatenate([array.ravel() for array in weights]).tolist(),
        "scores": {"loss": float(np.square(away).mean()), "mae": float(np.abs(away).mean())},
    }


def metric_of_a_loop(strategy: Any, folder: Path) -> list[float]:
    """Take a step of which each device sees another number, and let the next run restore the metric."""
    found = []
    for steps in (1, 2):
        with strategy.scope():
            metric = keras.metrics.Mean()
        run = Run(alone.process(folder), strategy, steps - 1)
        run.track(metric=metric, others=[tf.Variable(1.0)])
        found.append(float(metric.result()))
        for _ in run.steps(steps):
            strategy.run(
                lambda metric=metric: metric.update_state(
                    2.0 + tf.cast(tf.distribute.get_replica_context().replica_id_in_sync_group, tf.float32)
                )
            )
        found.append(float(tf.convert_to_tensor(metric.total.value)))
    return found


if __name__ == "__main__":
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    chosen = build_strategy(Task("worker", 0, {}))
    output = Path(sys.argv[1])
    strategies = {"two": chosen, "one": tf.distribute.get_strategy()}
    seen: dict[str, Any] = {
        name: {who: train(strategy, name, output / name / who) for who, strategy in strategies.items()}
        for name in MODELS
    }
    seen["loop"] = metric_of_a_loop(chosen, output / "loop")
    (output / "seen.json").write_text(json.dumps(seen))
