"""One long epoch and a short one. With SLOW set, it hardly goes on after the tenth batch."""

import json
import os
import time

import keras
import numpy as np
import tensorflow as tf


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):  # noqa: ARG002 - Keras names it
        if batch == 10:
            print("batch 10", flush=True)
        if batch >= 10:
            time.sleep(0.1)


keras.utils.set_random_seed(3)
x = np.random.default_rng(0).normal(size=(600, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(600).batch(4)
halved = keras.callbacks.LearningRateScheduler(lambda _epoch, rate: rate / 2)
history = model.fit(
    data, epochs=2, verbose=0, callbacks=[halved, *([Slow()] if os.environ.get("SLOW") else [])]
)
weights = [float(np.abs(one).sum()) for one in model.get_weights()]
print("ended", json.dumps({**history.history, "weights": weights}), flush=True)
