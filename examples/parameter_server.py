"""Train on scikit-learn's digits with parameter servers: workers take steps without waiting for each other.

Nothing here says so. The chief hands out the steps, and the variables lie on the `ps` replicas, because the
job has them; as a job of workers alone the same file trains in step.
"""

import keras
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from trainjob_trainer import train_and_evaluate


def scans(heldout: bool) -> tf.data.Dataset:
    """64 grey pixels and their label. The file is ordered by writer, so a fifth is drawn from all of it."""
    digits = load_digits()
    pixels = (digits.data / 16.0).astype("float32")
    labels = digits.target.astype("int32")
    train_x, test_x, train_y, test_y = train_test_split(
        pixels, labels, test_size=0.2, stratify=labels, random_state=0
    )
    return tf.data.Dataset.from_tensor_slices((test_x, test_y) if heldout else (train_x, train_y))


def train() -> tf.data.Dataset:
    return scans(heldout=False)


def heldout() -> tf.data.Dataset:
    return scans(heldout=True)


def model() -> keras.Model:
    layers = keras.layers
    net = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.2),
            layers.Dense(10),
        ]
    )
    net.compile(
        optimizer=keras.optimizers.Adam(2e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return net


if __name__ == "__main__":
    train_and_evaluate(model, train, heldout, epochs=20, global_batch=32)
