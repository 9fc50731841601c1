"""An ordinary script with state that each worker has for itself; FLIP=1 flips a bit of worker 1's weights."""

import json
import os

import keras
import numpy as np
import tensorflow as tf

TASK = json.loads(os.environ["TF_CONFIG"])["task"]


class FlippedBit(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):  # noqa: ARG002
        if epoch == 2 and os.environ.get("FLIP") and TASK["index"] == 1:
            kernel = self.model.weights[0].value.values[0]
            value = kernel.numpy()
            value.view("int32").flat[5] ^= 1
            kernel.assign(value)


random = np.random.default_rng(0)
x = random.normal(size=(64, 3)).astype("float32")
y = x.sum(axis=1, keepdims=True)
keras.utils.set_random_seed(1)
with tf.distribute.MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, activation="tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01, use_ema=True), "mse")
model.fit(x, y, batch_size=8, epochs=5, shuffle=False, verbose=0, callbacks=[FlippedBit()])
