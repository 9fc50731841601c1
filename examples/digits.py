"""Train a small CNN on 1,797 scans of handwritten digits, with as many workers as the job has.

Every replica runs this same file: workers train, the evaluator scores their checkpoints.
"""

import argparse

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from trainjob_trainer import train_and_evaluate


def scans(heldout: bool) -> tf.data.Dataset:
    """8x8 grey images and their labels. The file is ordered by writer, so a fifth is drawn from all of it."""
    digits = load_digits()
    images = (digits.images / 16.0).astype("float32")[..., None]
    labels = digits.target.astype("int32")
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.2, stratify=labels, random_state=0
    )
    return tf.data.Dataset.from_tensor_slices((test_x, test_y) if heldout else (train_x, train_y))


def train() -> tf.data.Dataset:
    return scans(heldout=False)


def heldout() -> tf.data.Dataset:
    return scans(heldout=True)


def model(epochs: int) -> keras.Model:
    layers = keras.layers
    steps = epochs * 23  # 1,437 scans in batches of 64
    net = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.RandomTranslation(0.1, 0.1, fill_mode="constant"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    net.compile(
        optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(3e-3, decay_steps=steps)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return net


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=25)
    epochs = parser.parse_args().epochs
    train_and_evaluate(lambda: model(epochs), train, heldout, epochs=epochs, global_batch=64)
