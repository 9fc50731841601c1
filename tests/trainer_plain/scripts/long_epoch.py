"""Two long epochs. SLOW=10: it hardly goes on from that batch; SCOPE=none: it has no strategy."""

import contextlib
import json
import os
import time

import keras
import numpy as np
import tensorflow as tf


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):  # noqa: ARG002 - Keras names it
        if batch == SLOW:
            print("now", flush=True)
        if batch >= SLOW:
            time.sleep(0.1 if SLOW < 149 else 1)


SLOW = int(os.environ.get("SLOW", "1000"))
keras.utils.set_random_seed(3)
x = np.random.default_rng(0).normal(size=(600, 4)).astype("float32")
y = (x.sum(axis=1) > 0).astype("float32")
alone = os.environ["SCOPE"] == "none"
with contextlib.nullcontext() if alone else tf.distribute.MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1, "sigmoid")]
    )
    model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(600).batch(4)
halved = keras.callbacks.LearningRateScheduler(lambda _epoch, rate: rate / 2)
callbacks = [halved, *([Slow()] if "SLOW" in os.environ else [])]
history = model.fit(data, epochs=2, verbose=0, validation_data=data.take(10), callbacks=callbacks)
weights = [float(np.abs(one).sum()) for one in model.get_weights()]
print("ended", json.dumps({**history.history, "weights": weights}), flush=True)
