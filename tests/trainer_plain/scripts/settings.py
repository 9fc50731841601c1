"""An ordinary script that trains one small model for each of Keras's settings."""

import json
import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

TASK = json.loads(os.environ["TF_CONFIG"])["task"]
BATCH, BATCHES = 8, 10
BAD = int(os.environ.get("BAD_BATCH", "-1"))
"""Its last target is NaN; 0 is the first batch."""

keras.config.disable_traceback_filtering()
SGD = keras.optimizers.SGD


class OwnStep(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
            scaled = self.optimizer.scale_loss(loss)
        self.optimizer.apply(tape.gradient(scaled, self.trainable_variables), self.trainable_variables)
        self._loss_tracker.update_state(loss)
        return self.get_metrics_result()


class EachBatch(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


def loss_scale():
    return keras.optimizers.LossScaleOptimizer(
        SGD(0.02, clipnorm=0.5), initial_scale=1024.0, dynamic_growth_steps=3
    )


def accumulating():
    return SGD(0.1, gradient_accumulation_steps=3, global_clipnorm=0.5)


CASES = {
    "clipped": {"optimizer": lambda: SGD(0.1, clipnorm=0.5)},
    "accumulation": {"optimizer": accumulating},
    "accumulation, own step": {"optimizer": accumulating, "kind": OwnStep},
    "float16": {"optimizer": loss_scale, "overflows": True},
    "float16, own step": {"optimizer": loss_scale, "overflows": True, "kind": OwnStep},
    "compiled": {"optimizer": lambda: SGD(0.1, clipnorm=0.5), "compiled": True},
    "compiled, own step": {"optimizer": lambda: SGD(0.1), "compiled": True, "kind": OwnStep},
    "eager": {"optimizer": lambda: SGD(0.1), "eager": True},
    "each batch": {"optimizer": lambda: SGD(0.1, clipvalue=0.2), "callbacks": [EachBatch()]},
}
UNEQUAL = ("accumulation", "accumulation, own step", "compiled", "each batch")
CASES |= {f"{name}, unequal parts": {**CASES[name], "batch": 7} for name in UNEQUAL}


def train(
    strategy,
    *,
    optimizer,
    kind=keras.Model,
    overflows=False,
    compiled=False,
    eager=False,
    callbacks=(),
    batch=BATCH,
):
    random = np.random.default_rng(0)
    x = random.normal(size=(BATCH * BATCHES, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True) * np.linspace(0.1, 3, len(x), dtype="float32")[:, None]
    if overflows:
        y[5 * BATCH - 1] = 3e4
    if BAD >= 0:
        y[(BAD + 1) * BATCH - 1] = np.nan
    keras.utils.set_random_seed(1)
    dtype = "mixed_float16" if overflows else "float32"
    with strategy.scope():
        inputs = keras.Input((3,))
        hidden = keras.layers.Dense(4, activation="tanh", dtype=dtype)(inputs)
        model = kind(inputs, keras.layers.Dense(1, dtype=dtype)(hidden))
        model.compile(optimizer(), "mse", auto_scale_loss=False, jit_compile=compiled, run_eagerly=eager)
    model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0, callbacks=list(callbacks))
    weights = [weight.ravel() for weight in model.get_weights()]
    scale = getattr(model.optimizer, "dynamic_scale", None)
    if scale is not None:
        weights.append([strategy.experimental_local_results(scale.value)[0].numpy()])
    return np.concatenate(weights)


chosen = tf.distribute.MultiWorkerMirroredStrategy()
results = {name: train(chosen, **CASES[name]) for name in os.environ["CASES"].split(";")}
seen = Path(os.environ["SEEN"])
seen.mkdir(parents=True, exist_ok=True)
np.savez(seen / f"{TASK['type']}-{TASK['index']}.npz", **results)
