"""A variational autoencoder of drawings, whose `train_step` has a loss of two parts.

python variational_autoencoder.py FOLDER [--noise SCALE]
"""

import argparse
import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
parser.add_argument("--noise", type=float, default=1.0)
options = parser.parse_args()
options.folder.mkdir(parents=True, exist_ok=True)

keras.utils.set_random_seed(2)
# Under a strategy Keras by itself refuses a model without `call`, so one process does without.
is_one_of_several = "TF_CONFIG" in os.environ
strategy = tf.distribute.MultiWorkerMirroredStrategy() if is_one_of_several else tf.distribute.get_strategy()


class Sampling(layers.Layer):
    """Draws a code from the distribution that the encoder describes."""

    def __init__(self, noise, **kwargs):
        super().__init__(**kwargs)
        self.noise = noise
        self.seed_generator = keras.random.SeedGenerator(2)

    def call(self, inputs):
        """Return the mean, moved by noise of this variance."""
        mean, log_variance = inputs
        drawn = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + self.noise * ops.exp(0.5 * log_variance) * drawn


class VariationalAutoencoder(keras.Model):
    """It has no `call`: encoder and decoder are used by themselves."""

    def __init__(self, encoder, decoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder, self.decoder = encoder, decoder
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.pixels_tracker = keras.metrics.Mean(name="pixels_loss")
        self.divergence_tracker = keras.metrics.Mean(name="divergence")

    @property
    def metrics(self):
        """Those that `fit` resets at the start of an epoch."""
        return [self.loss_tracker, self.pixels_tracker, self.divergence_tracker]

    def train_step(self, data):
        """Take one step on a batch of images."""
        with tf.GradientTape() as tape:
            mean, log_variance, code = self.encoder(data)
            made = self.decoder(code)
            pixels = ops.mean(ops.sum(keras.losses.binary_crossentropy(data, made), axis=(1, 2)))
            divergence = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
            divergence = ops.mean(ops.sum(divergence, axis=1))
            loss = pixels + divergence
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.loss_tracker.update_state(loss)
        self.pixels_tracker.update_state(pixels)
        self.divergence_tracker.update_state(divergence)
        return {metric.name: metric.result() for metric in self.metrics}


def build_encoder():
    """From images to a mean, a variance and a code of two numbers."""
    images = keras.Input((28, 28, 1))
    hidden = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(images)
    hidden = layers.Conv2D(32, 3, strides=2, padding="same", activation="relu")(hidden)
    hidden = layers.Dense(16, activation="relu")(layers.Flatten()(hidden))
    mean, log_variance = layers.Dense(2, name="mean")(hidden), layers.Dense(2, name="log_variance")(hidden)
    return keras.Model(images, [mean, log_variance, Sampling(options.noise)([mean, log_variance])])


def build_decoder():
    """From codes to images."""
    return keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(7 * 7 * 32, activation="relu"),
            layers.Reshape((7, 7, 32)),
            layers.Conv2DTranspose(32, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2DTranspose(16, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2DTranspose(1, 3, padding="same", activation="sigmoid"),
        ]
    )


# A drawing is a bar across the middle: its angle and its width vary.
random = np.random.default_rng(2)
row, column = np.mgrid[-1:1:28j, -1:1:28j]
angle, width = random.uniform(0, np.pi, (2000, 1, 1)), random.uniform(0.1, 0.4, (2000, 1, 1))
distance = np.abs(np.sin(angle) * column + np.cos(angle) * row)
images = np.clip(4 * (width - distance) + 0.5, 0, 1).astype("float32")[..., None]

with strategy.scope():
    model = VariationalAutoencoder(build_encoder(), build_decoder())
    model.compile(optimizer=keras.optimizers.Adam(2e-3))

model.fit(
    images,
    batch_size=128,
    epochs=4,
    callbacks=[keras.callbacks.CSVLogger(options.folder / "history.csv")],
    verbose=2,
)
model.encoder.save_weights(options.folder / "encoder.weights.h5")
model.decoder.save_weights(options.folder / "last.weights.h5")
