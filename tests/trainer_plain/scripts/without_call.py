"""A model without `call()`, with an optimizer of its own; it dies in its third epoch if asked to."""

import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(1)
is_alone = os.environ["STRATEGY"] == "none"
strategy = tf.distribute.get_strategy() if is_alone else tf.distribute.MultiWorkerMirroredStrategy()


class Autoencoder(keras.Model):
    def __init__(self):
        super().__init__()
        self.coder = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2), keras.layers.Dense(4)])
        self.own_optimizer = keras.optimizers.Adam(0.01)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.coder(data) - data))
        weights = self.coder.trainable_variables
        self.own_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


class Die(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):  # noqa: ARG002
        while epoch == 2 and "DIES" in os.environ:
            if list(Path(os.environ["TRAINJOB_CHECKPOINT_DIR"]).glob("step-*/manifest.json")):
                os._exit(9)
            time.sleep(0.05)


with strategy.scope():
    model = Autoencoder()
    model.compile()
x = np.random.default_rng(5).normal(size=(64, 4)).astype("float32")
history = model.fit(x, epochs=4, shuffle=False, verbose=0, callbacks=[Die()]).history
print("losses", *(f"{loss:.6f}" for loss in history["loss"]))
